"""How an optimizer's state is stored in fewer bits than it is computed in.

Rounding is stochastic: the expected value of what is stored is what was given, so that an average
that changes by less than a step of its format per update still moves.
"""

import math
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

MIN_ROW = 16
"""Rows of fewer numbers would save too little beside their scales."""

SMALLEST = 2.0**-126
"""The smallest float32 that is normal."""


class Stored(NamedTuple):
    """An array as it is stored.

    Args:
        values: One value for each of the array's.
        scales: What values of a row count in; None where the format needs none.
    """

    values: Array
    scales: Array | None


class StateFormat(Protocol):
    """Stores float32 arrays; `dtype` is that of stored values."""

    dtype: Any

    def can_store(self, shape: tuple[int, ...]) -> bool:
        """Whether arrays of a shape are stored so; others stay float32."""
        ...

    def encode(self, x: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Stored:
        """Returns the array as it is stored, rounded by random bits of its shape."""
        ...

    def decode(self, stored: Stored) -> Float[Array, "..."]:
        """Returns a stored array in float32."""
        ...


class Bfloat16:
    """Rounds to bfloat16."""

    dtype = jnp.bfloat16

    def can_store(self, shape: tuple[int, ...]) -> bool:
        """Every shape."""
        return True

    def encode(self, x: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Stored:
        """Returns the array in bfloat16."""
        return Stored(round_to_bfloat16(x, bits), None)

    def decode(self, stored: Stored) -> Float[Array, "..."]:
        """Returns a stored array in float32."""
        return stored.values.astype(jnp.float32)


class Int8Rows:
    """Eight bits a number, and a float32 scale for each row, which is the last dimension.

    A code `c` means `scale * sign(c) * (|c| / m) ** 4`, where the scale is the row's largest
    magnitude. A row without negative numbers, as of squared gradients, has `m = 255`; others have
    `m = 127`, codes that are 128 more, and their scale is stored as a negative number. A number
    that is not 0 is never rounded to 0, where Adam would divide by it.

    Source: Dettmers et al. 2021, arXiv:2110.02861. Differs: the fourth power instead of a table,
    stochastic rounding, and rows for blocks, so that no array needs another layout.
    """

    dtype = jnp.uint8

    def __init__(self, min_size: int) -> None:
        self.min_size = min_size

    def can_store(self, shape: tuple[int, ...]) -> bool:
        """Large arrays whose rows are long enough."""
        return math.prod(shape) >= self.min_size and bool(shape) and shape[-1] >= MIN_ROW

    def encode(self, x: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Stored:
        """Returns codes of the array's shape, and scales with a last dimension of 1."""
        largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
        scales = jnp.where(jnp.min(x, axis=-1, keepdims=True) < 0, -largest, largest)
        zero, top = _zero_and_top(scales)
        magnitudes = jnp.abs(x) / jnp.maximum(largest, SMALLEST)
        below = jnp.floor(top * jnp.sqrt(jnp.sqrt(magnitudes)))
        low, high = (below / top) ** 4, ((below + 1) / top) ** 4
        is_up = _uniform(bits) * (high - low) < magnitudes - low
        steps = jnp.minimum(jnp.where(is_up, below + 1, below), top)
        steps = jnp.maximum(steps, jnp.where(magnitudes > 0, 1.0, 0.0))
        return Stored((zero + jnp.sign(x) * steps).astype(jnp.uint8), scales)

    def decode(self, stored: Stored) -> Float[Array, "..."]:
        """Returns a stored array in float32."""
        assert stored.scales is not None, "codes come with scales"
        zero, top = _zero_and_top(stored.scales)
        steps = (stored.values.astype(jnp.float32) - zero) / top
        decoded: Array = jnp.abs(stored.scales) * jnp.sign(steps) * steps**4
        return decoded


def round_to_bfloat16(x: Float[Array, "..."], bits: UInt32[Array, "..."]) -> Array:
    """Returns float32 numbers as one of the two nearest of bfloat16, drawn by random bits."""
    raised = jax.lax.bitcast_convert_type(x, jnp.uint32) + (bits & jnp.uint32(0xFFFF))
    rounded = jax.lax.bitcast_convert_type(raised & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def _zero_and_top(scales: Array) -> tuple[Array, Array]:
    """Returns the code of 0, and the largest distance of a code from it, of each row."""
    zero = jnp.where(scales < 0, jnp.float32(128), jnp.float32(0))
    return zero, 255 - zero


def _uniform(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    uniform: Array = (bits >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2**-24)
    return uniform
