"""Axes cut into blocks of equal size, and loops and branches that hardware may lack.

Blocks are on a new leading axis, so that a loop takes one by a contiguous slice and no sharded
axis is ever cut. The last block is padded with zeros.
"""

from collections.abc import Callable
from typing import TypeVar

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.dispatch import current_policy


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
        # Even, so that the last block is not mostly padding; 16 rows are a tile of 16 bits on
        # accelerators.
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


T = TypeVar("T")


def branch(chosen: Array, first: Callable[[], T], second: Callable[[], T]) -> T:
    """Return `first()` where `chosen`, else `second()`, computing only that one.

    Where the policy's hardware cannot branch, both are computed and one is selected.
    """
    if current_policy().hardware.can_branch:
        value: T = lax.cond(chosen, first, second)
        return value
    # A select passes gradients of both sides, so neither may make a NaN of arguments that it was
    # not meant for.
    return _select(chosen, first(), second())


def bounded_fori_loop(
    start: Array, stop: Array, step: Callable[[Array, T], T], carry: T, *, max_steps: int
) -> T:
    """Return the carry after `step(i, carry)` for each `start <= i < stop`.

    Where the policy's hardware cannot branch, every `i` below `max_steps` is computed, and the
    carry of those outside is selected away.

    Args:
        start: The first.
        stop: One more than the last; at most `max_steps`.
        step: From a number and the carry to the next carry.
        carry: The first carry.
        max_steps: Number of steps at most.
    """
    if current_policy().hardware.can_branch:
        result: T = lax.fori_loop(start, stop, step, carry)
        return result

    def guarded(i: Array, carry: T) -> T:
        return _select((start <= i) & (i < stop), step(i, carry), carry)

    padded: T = lax.fori_loop(0, max_steps, guarded, carry)
    return padded


def _select(chosen: Array, first: T, second: T) -> T:
    selected: T = jax.tree.map(lambda a, b: jnp.where(chosen, a, b), first, second)
    return selected
