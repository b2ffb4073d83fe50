"""`LoRALinear`: a linear layer plus a correction of low rank, the only part that is trained."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.linear import GROUP_SIZES, Linear, as_row, take_by_group
from axcore.layers.lora.magnitude import Magnitude
from axcore.layers.norm import Dropout
from axcore.module import ConstantInit, DTypes, Module

ADAPTERS = ("**.lora_down.**", "**.lora_up.**")
"""Globs of the parameters that adapters have."""
MAGNITUDES = ("**.lora_magnitude.**",)
"""Globs of those that adapters have besides, where `use_dora` is set."""

_TRAINED = DTypes(param="float32")
"""Adapters are small and are what is trained: updates to bfloat16 would round away."""


class LoRALinear(Module):
    """`base(x) + (alpha / rank) up(down(x))`; the correction starts at zero.

    It replaces its base, whatever kind of linear layer that is.

    Source: Hu et al. 2021, arXiv:2106.09685, eq. 3. Slot protocol: that of `Linear`.
    """

    @config
    class Config(Module.Config["LoRALinear"]):
        """The config of a `LoRALinear`.

        Args:
            in_dim: Size of the last dimension of the input.
            out_dim: Size of the last dimension of the output.
            axes: Logical axes of the base's weight, input first.
            base: The layer that is corrected; with `use_dora` it has a `weight`.
            rank: Width between the two factors of the correction.
            alpha: The correction is multiplied by `alpha / rank`.
            use_rslora: It is multiplied by `alpha / sqrt(rank)`. Source: Kalajdzievski 2023,
                arXiv:2312.03732, eq. 3.
            use_dora: The lengths of the corrected weight's columns are trained too; see
                `Magnitude`.
            dropout: Applied to what the correction sees.
            down: The factor from the input to the rank; stored in float32, whatever the base is.
            up: The factor from the rank to the output, likewise.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        axes: tuple[str | None, str | None] = REQUIRED
        base: Module.Config = REQUIRED
        rank: PositiveInt = 8
        alpha: float = 16.0
        use_rslora: bool = False
        use_dora: bool = False
        dropout: Dropout.Config = Dropout.Config()
        down: Linear.Config = Linear.Config(dtypes=_TRAINED)
        up: Linear.Config = Linear.Config(dtypes=_TRAINED, weight_init=ConstantInit(value=0.0))

        @property
        def scale(self) -> float:
            """The factor on the correction."""
            return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)

        @property
        def plain_parts(self) -> tuple[str, ...]:
            """The factors, and the base where its weight is read."""
            return ("down", "up", "base") if self.use_dora else ("down", "up")

    def setup(self, cfg: Config) -> None:
        """Build the base, the two factors and the magnitude."""
        if cfg.rank < 1:
            raise ConfigError(f"rank is {cfg.rank}; expected 1 or more", where="rank")
        into, out = cfg.axes
        self.base = cfg.base.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)
        self.lora_down = cfg.down.build(in_dim=cfg.in_dim, out_dim=cfg.rank, axes=(into, None))
        self.lora_up = cfg.up.build(in_dim=cfg.rank, out_dim=cfg.out_dim, axes=(None, out))
        if cfg.use_dora:
            self.lora_magnitude = Magnitude.Config(axis=out, dtypes=_TRAINED).build(
                out_dim=cfg.out_dim
            )
        self.dropout = cfg.dropout.build()

    @property
    def scale(self) -> float:
        """The factor on the correction."""
        return float(self.config.scale)

    def forward(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        """Return the corrected projection."""
        seen = self.dropout(x)
        correction = self.lora_up(self.lora_down(seen))
        y: Array = self.base(x)
        if not self.config.use_dora:
            return y + correction * self.scale
        factors = self._column_factors()
        is_dropped = self.training and self.config.dropout.rate > 0
        plain = self._without_bias(self.base(seen) if is_dropped else y)
        turned = self._by_rows(factors, y) * (correction * self.scale)
        return y + self._by_rows(factors - 1.0, y) * plain + turned

    def _column_factors(self) -> Float[Array, "*copies N"]:
        """Return what the corrected weight's columns are multiplied by, in float32."""
        weight, down, up = self.base.weight, self.lora_down.weight, self.lora_up.weight
        product = jnp.matmul(down.astype(jnp.float32), up.astype(jnp.float32))
        factors: Array = self.lora_magnitude(weight, jax.lax.stop_gradient(self.scale * product))
        return factors

    def _without_bias(self, y: Array) -> Array:
        has_bias = getattr(self.base.config, "has_bias", False)
        return y - self._by_rows(self.base.bias, y) if has_bias else y

    def _by_rows(self, values: Array, y: Array) -> Array:
        """Return values of columns for each row, which are its own copy's where these differ."""
        values = values.astype(y.dtype)
        if values.ndim == 1:
            return as_row(values, y.ndim)
        taken = take_by_group(values, self.get_shared(GROUP_SIZES), y[..., 0].size)
        return taken.reshape(y.shape)
