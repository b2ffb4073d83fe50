"""`Magnitude`: the lengths of a corrected weight's columns, trained apart from their directions.

Letters of shapes: K input, N output; leading dimensions are copies of the layer.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.linear import GroupedRows
from axcore.module import Module, Param

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
    factor = jnp.arange(2, dtype=jnp.float32).reshape(2, *[1] * weight.ndim)
    wide, change = weight.astype(jnp.float32)[None], correction.astype(jnp.float32)[None]
    return column_lengths(wide + factor * change)
