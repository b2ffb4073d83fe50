"""`LoRALinear`: a linear layer plus a correction of low rank, the only part that is trained."""

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.dropout import Dropout
from axcore.layers.linear import Linear
from axcore.module import ConstantInit, Module

ADAPTERS = ("**.lora_down.**", "**.lora_up.**")
"""Globs of the parameters that adapters have."""


class LoRALinear(Module):
    """`base(x) + (alpha / rank) up(down(x))`; the correction starts at zero.

    It replaces its base, whatever kind of linear layer that is.

    Source: Hu et al. 2021, arXiv:2106.09685, eq. 3. Slot protocol: that of `Linear`.
    """

    @config
    class Config(Module.Config["LoRALinear"]):
        """Describes a `LoRALinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the base's weight, input first.
            base: The layer that is corrected.
            rank: Width between the two factors of the correction.
            alpha: The correction is multiplied by `alpha / rank`.
            dropout: Applied to what the correction sees.
            down: The factor from the input to the rank.
            up: The factor from the rank to the output.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        base: Module.Config = REQUIRED
        rank: PositiveInt = 8
        alpha: float = 16.0
        dropout: Dropout.Config = Dropout.Config()
        down: Linear.Config = Linear.Config()
        up: Linear.Config = Linear.Config(weight_init=ConstantInit(value=0.0))

    def setup(self, cfg: Config) -> None:
        """Builds the base and the two factors."""
        if cfg.rank < 1:
            raise ConfigError(f"rank is {cfg.rank}; expected 1 or more", where="rank")
        into, out = cfg.axes
        self.base = cfg.base.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)
        self.lora_down = cfg.down.build(in_dim=cfg.in_dim, out_dim=cfg.rank, axes=(into, None))
        self.lora_up = cfg.up.build(in_dim=cfg.rank, out_dim=cfg.out_dim, axes=(None, out))
        self.dropout = cfg.dropout.build()

    @property
    def scale(self) -> float:
        """The factor on the correction."""
        return float(self.config.alpha / self.config.rank)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Returns the corrected projection."""
        correction = self.lora_up(self.lora_down(self.dropout(x)))
        y: Array = self.base(x)
        return y + correction * self.scale
