"""`ValueResidual`: every layer's values are mixed with the first layer's."""

from typing import Any

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.layers import Linear
from axcore.module import Module, Param
from axl_attention.wrapping import refuse_second

CHANNEL = "first_values"


class ValueResidual(Module):
    """`share[0] * first layer's values + share[1] * own values`; the first layer's are its own.

    It is a projection, so it fills `Attention.value_linear` and no signature changes. The
    shares are learned, and a half each at first.

    Source: Zhou et al. 2024, arXiv:2410.17897, eq. 4 (learnable ResFormer). Slot protocol: the
    parent fills `in_dim`, `out_dim` and `axes`.
    """

    @config
    class Config(Module.Config["ValueResidual"]):
        """The config of a `ValueResidual`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the projection's weight, input first.
            linear: The layer's own projection.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        linear: Module.Config = Linear.Config()

    def setup(self, cfg: Config) -> None:
        """Declare the shares and build the projection."""
        refuse_second(ValueResidual, cfg.linear)
        self.share = Param((2,), axes=(None,), init=0.5)
        self.linear = cfg.linear.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the mixed values; the first layer that runs sends its own to all others."""
        own = self.linear(x)
        first = self.get_shared(CHANNEL)
        if first is None:
            self.set_shared(CHANNEL, own)
            return own
        return self.share[0] * first + self.share[1] * own


def in_place_of(old: Any) -> Any:
    """Return an attention whose values are mixed with those of the first layer."""
    own = old.value_linear or old.linear
    return evolve(old, value_linear=ValueResidual.Config(linear=own))
