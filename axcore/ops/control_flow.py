"""Branches and loops that depend on values known at run time only, or what stands in for them on
hardware that has none.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from axcore.ops.dispatch.policy import current_policy

T = TypeVar("T")


def branch(chosen: Array, first: Callable[[], T], second: Callable[[], T]) -> T:
    """Return `first()` where `chosen`, else `second()`, computing only that one.

    Where the policy's hardware cannot branch, both are computed and one is selected.
    """
    if current_policy().hardware.can_branch:
        value: T = lax.cond(chosen, first, second)
        return value
    return _select(chosen, first(), second())


def bounded_fori_loop(
    start: Array, stop: Array, step: Callable[[Array, T], T], carry: T, *, most: int
) -> T:
    """Return the carry after `step(i, carry)` for each `start <= i < stop`.

    Where the policy's hardware cannot branch, every `i` below `most` is computed, and the carry of
    those outside is selected away.

    Args:
        start: The first.
        stop: One more than the last; at most `most`.
        step: From a number and the carry to the next carry.
        carry: The first carry.
        most: How many there are at most.
    """
    if current_policy().hardware.can_branch:
        result: T = lax.fori_loop(start, stop, step, carry)
        return result

    def guarded(i: Array, carry: T) -> T:
        return _select((start <= i) & (i < stop), step(i, carry), carry)

    padded: T = lax.fori_loop(0, most, guarded, carry)
    return padded


def _select(chosen: Array, first: T, second: T) -> T:
    selected: T = jax.tree.map(lambda a, b: jnp.where(chosen, a, b), first, second)
    return selected
