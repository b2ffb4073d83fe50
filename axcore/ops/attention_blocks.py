"""Cutting queries and keys into blocks, and which pairs of blocks have anything to compute.

Blocks stand on a new leading axis, so that a loop takes one by a contiguous slice and no sharded
axis is ever cut. The last block is padded.
"""

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from axcore.ops.attention_types import AttentionSpec


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


def live_pairs(
    queries: Blocks, keys: Blocks, spec: AttentionSpec, *, offset_is_static: bool
) -> np.ndarray:
    """Return int32 `[P, 2]`: the (query block, key block) pairs that causality and window leave.

    Pairs are sorted by query block. Where the offset of the queries is known only at run time
    nothing can be left out.
    """
    pairs = np.indices((queries.num, keys.num), dtype=np.int32).reshape(2, -1).T
    if not offset_is_static:
        return pairs
    first_query = pairs[:, 0] * queries.size + spec.query_offset
    last_query = np.minimum(first_query + queries.size, queries.length + spec.query_offset) - 1
    first_key = pairs[:, 1] * keys.size
    last_key = np.minimum(first_key + keys.size, keys.length) - 1
    is_live = np.ones(len(pairs), bool)
    if spec.left is not None:
        is_live &= last_key >= first_query - spec.left
    if spec.right is not None:
        is_live &= first_key <= last_query + spec.right
    return pairs[is_live]
