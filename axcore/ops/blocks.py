"""Cutting an axis into blocks of equal size.

Blocks are on a new leading axis, so that a loop takes one by a contiguous slice and no sharded
axis is ever cut. The last block is padded with zeros.
"""

import attrs
import jax
import jax.numpy as jnp
from jax import Array


@attrs.frozen
class Blocks:
    """How one axis is cut: `num` blocks of `size` cover `length` entries."""

    length: int
    size: int

    @classmethod
    def at_most(cls, length: int, limit: int) -> "Blocks":
        """Return the evenest cut into blocks of at most `limit`; several are a multiple of 16."""
        num = -(-length // limit)
        if num <= 1:
            return cls(length, max(length, 1))
        return cls(length, min(limit, -(-length // (16 * num)) * 16))

    @property
    def num(self) -> int:
        """Number of blocks, at least 1."""
        return max(1, -(-self.length // self.size))

    @property
    def is_padded(self) -> bool:
        """Whether the last block reaches past the end."""
        return self.num * self.size > self.length

    def cut(self, x: Array, axis: int) -> Array:
        """Return `x` with `axis` of `length` cut: blocks lead, `axis` is their inner size."""
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, self.num * self.size - self.length)
        x = jnp.pad(x, padding) if self.is_padded else x
        shape = (*x.shape[:axis], self.num, self.size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    def join(self, blocks: Array, axis: int) -> Array:
        """Return what was cut along `axis`, without padding."""
        x = jnp.moveaxis(blocks, 0, axis)
        x = x.reshape(*x.shape[:axis], self.num * self.size, *x.shape[axis + 2 :])
        return jax.lax.slice_in_dim(x, 0, self.length, axis=axis)
