"""`Experts`: how tokens get to their experts and back; abstract."""

from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.moe.routing import Routing
from axcore.module import Module

Tokens = Float[Array, "batch time dim"]
Choices = Int[Array, "batch time choices"]
Weights = Float[Array, "batch time choices"]


class Experts(Module):
    """Many copies of a feed-forward, each for the tokens that are routed to it.

    Every kind of `Experts` has the same state, that of the feed-forward with a leading axis
    `expert`. Slot protocol: the parent fills `dim`, `num_experts` and `expert`.
    """

    @config
    class Config(Module.Config["Experts"]):
        """Describes what every kind has.

        Args:
            dim: Size of a token's vector.
            num_experts: Number of experts.
            expert: The feed-forward.
        """

        dim: PositiveInt = REQUIRED
        num_experts: PositiveInt = REQUIRED
        expert: Module.Config = REQUIRED

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Returns each token's weighted sum of what its experts make of it.

        Choices of padding have the number `num_experts` and a weight of 0: they go nowhere.
        """
        raise NotImplementedError(f"{type(self).__qualname__} runs no expert")
