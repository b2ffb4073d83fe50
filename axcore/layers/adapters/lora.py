"""`LoRALinear`: a linear layer plus a trained correction of low rank, and `Magnitude` of DoRA.

Letters of shapes: K input, N output; leading dimensions are copies of the layer.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError
from axcore.layers.linear import GROUP_SIZES, GroupedRows, Linear, as_row, take_by_group
from axcore.layers.norm import Dropout
from axcore.module import ConstantInit, DTypes, Module, Param

_SHORTEST = 1e-30
"""A column of zeros has no direction; it stays zeros."""


class Magnitude(GroupedRows, Module):
    """What the columns of a corrected weight are multiplied by.

    The weight's own lengths are not kept: what is trained is how far the lengths are from them, so
    that a new one changes nothing, whatever weights a run begins with.

    Source: Liu et al. 2024, arXiv:2402.09353, eq. 5; the length in its denominator is a constant
    to the gradient (section 4.3).
    """

    @config
    class Config(Module.Config["Magnitude"]):
        """The config of a `Magnitude`.

        Args:
            out_dim: How many columns there are.
            axis: Their logical axis.
        """

        out_dim: PositiveInt = REQUIRED
        axis: str | None = None

    def setup(self, cfg: Config) -> None:
        """Declare the change of lengths."""
        self.change = Param((cfg.out_dim,), axes=(cfg.axis,), init=0.0)

    def forward(
        self, weight: Float[Array, "*copies K N"], correction: Float[Array, "*copies K N"]
    ) -> Float[Array, "*copies N"]:
        """Return the factor of each column of `weight + correction`; 1 before any training."""
        return column_factors(weight, correction, self.change)


def column_factors(
    weight: Float[Array, "*copies K N"],
    correction: Float[Array, "*copies K N"],
    change: Float[Array, "*copies N"],
) -> Float[Array, "*copies N"]:
    """Return the wanted length of each column of a corrected weight over the one that it has."""
    before, now = jax.lax.stop_gradient(_lengths(weight, correction))
    return (before + change.astype(jnp.float32)) / jnp.maximum(now, _SHORTEST)


def column_lengths(weight: Float[Array, "*copies K N"]) -> Float[Array, "*copies N"]:
    """Return the length of each column, in float32."""
    return jnp.sqrt(jnp.sum(jnp.square(weight.astype(jnp.float32)), axis=-2))


def _lengths(weight: Array, correction: Array) -> Float[Array, "2 *copies N"]:
    """Return lengths without and with a correction.

    They are one sum, so that they are the same to the last bit where the correction is zero.
    """
    # Two sums may be compiled in different orders; one over a leading dimension of both is not.
    factor = jnp.arange(2, dtype=jnp.float32).reshape(2, *[1] * weight.ndim)
    wide, change = weight.astype(jnp.float32)[None], correction.astype(jnp.float32)[None]
    return column_lengths(wide + factor * change)


ADAPTERS = ("**.lora_down.**", "**.lora_up.**")
"""Globs of the parameters that adapters have."""
MAGNITUDES = ("**.lora_magnitude.**",)
"""Globs of those that adapters have in addition, where `use_dora` is set."""

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
        self.base: Any = cfg.base.build(in_dim=cfg.in_dim, out_dim=cfg.out_dim, axes=cfg.axes)
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
        # As in PEFT, DoRA's factors multiply what the base makes of the input after dropout, while
        # the base itself sees all of it.
        plain = self._without_bias(self.base(seen) if is_dropped else y)
        turned = self._by_rows(factors, y) * (correction * self.scale)
        return y + self._by_rows(factors - 1.0, y) * plain + turned

    def _column_factors(self) -> Float[Array, "*copies N"]:
        """Return the factor on each column of the corrected weight, in float32."""
        weight, down, up = self.base.weight, self.lora_down.weight, self.lora_up.weight
        product = jnp.matmul(down.astype(jnp.float32), up.astype(jnp.float32))
        # No gradient through the length in the denominator, which the paper leaves out to save
        # memory.
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
