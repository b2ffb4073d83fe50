"""`NormedLinear`: a projection that is normalised over its whole width."""

from typing import Any

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.layers import Linear, RMSNorm
from axcore.module import Module
from axl_attention.wrapping import refuse_second


class NormedLinear(Module):
    """`norm(linear(x))`. Slot protocol: the parent fills `in_dim`, `out_dim` and `axes`.

    As the projection of queries and keys it normalises all heads together, where `QueryKeyNorm`
    normalises each by itself.

    Source: Dehghani et al. 2023, arXiv:2302.05442, section 2; over all heads as in OLMo Team 2025,
    arXiv:2501.00656, section 3.1.
    """

    @config
    class Config(Module.Config["NormedLinear"]):
        """The config of a `NormedLinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the projection's weight, input first.
            linear: The projection.
            norm: What normalises it.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        linear: Module.Config = Linear.Config()
        norm: Module.Config = RMSNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the projection and the norm."""
        refuse_second(NormedLinear, cfg.linear)
        self.linear = cfg.linear.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)
        self.norm = cfg.norm.build(dim=cfg.out_dim)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the normalised projection of the last dimension."""
        return self.norm(self.linear(x))


def in_place_of(old: Any) -> Any:
    """Return an attention that normalises queries and keys, all heads together."""
    return evolve(
        old,
        linear=NormedLinear.Config(linear=old.linear),
        value_linear=old.value_linear or old.linear,
    )
