"""`InputScaled`: experts whose inputs are weighed, in the place of their outputs.

Letters: B batch, T time, K choices of a token, D width.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import config
from axcore.layers import Dropless, Experts, Routing

Tokens = Float[Array, "batch time dim"]


class InputScaled(Experts):
    """Multiplies what enters an expert by the router's weight, and adds outputs up as they are.

    Each choice of a token is to the experts inside a token of its own, of weight one.

    Source: `forward` in models/llama4/moe.py of Meta's llama-models, 2025; no paper has it.
    """

    @config
    class Config(Experts.Config):
        """The config of an `InputScaled`.

        Args:
            inner: How the scaled tokens get to their experts and back.
        """

        inner: Experts.Config = Dropless.Config()

    def setup(self, cfg: Config) -> None:
        """Build the experts."""
        self.inner = cfg.inner.build(dim=cfg.dim, num_experts=cfg.num_experts, expert=cfg.expert)

    def forward(self, x: Tokens, routing: Routing) -> Tokens:
        """Return each token's sum of what its experts make of their share of it."""
        batch, time, num_choices = routing.experts.shape
        x_BTKD = x[:, :, None] * routing.weights.astype(x.dtype)[..., None]
        alone = Routing(
            routing.experts.reshape(batch, -1, 1),
            jnp.ones((batch, time * num_choices, 1), routing.weights.dtype),
        )
        y = self.inner(x_BTKD.reshape(batch, -1, x.shape[-1]), alone)
        return jnp.sum(y.reshape(batch, time, num_choices, -1), axis=2)
