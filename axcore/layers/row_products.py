"""Products of one row with a matrix, in parts that cores compute at once.

Letters of shapes: K input, N output, P parts.
"""

import math
from contextlib import AbstractContextManager
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore._jax_compat import user_context

SMALLEST = 1 << 16
"""Numbers of a matrix below which one core is as fast as several."""

_parts = user_context(1)


def rows_in_parts(parts: int) -> AbstractContextManager[None]:
    """Inside, a float32 product of one row is computed in as many parts, where they divide it.

    Compilers for CPUs share the product of several rows among cores, and leave that of one to one
    core; in parts it is a product of several. Only rounding differs, of the sum of the parts.
    """
    return cast(AbstractContextManager[None], _parts(parts))


def times(x: Float[Array, "*rows K"], weight: Float[Array, "K N"]) -> Float[Array, "*rows N"]:
    """Returns `x @ weight`; its parts are those of K, which lie one after the other."""
    parts = _parts_of(x, weight)
    if parts == 1:
        return x @ weight
    by_part = x.reshape(parts, 1, -1) @ weight.reshape(parts, -1, weight.shape[1])
    return jnp.sum(by_part, axis=0)


def compared(x: Float[Array, "*rows K"], rows: Float[Array, "N K"]) -> Float[Array, "*rows N"]:
    """Returns `x @ rows.T`, of which compilers for CPUs copy the transpose; its parts are of N."""
    parts = _parts_of(x, rows)
    if parts == 1:
        return jax.lax.dot_general(x, rows, (((x.ndim - 1,), (1,)), ((), ())))
    many = jnp.broadcast_to(x, (parts, *x.shape))
    by_part = rows.reshape(parts, -1, rows.shape[1])
    products = jax.lax.dot_general(many, by_part, (((2,), (2,)), ((0,), (0,))))
    return products.reshape(1, -1)


def _parts_of(x: Array, matrix: Array) -> int:
    is_one = x.ndim == 2 and x.shape[0] == 1 and x.dtype == matrix.dtype == jnp.float32
    return math.gcd(_parts.value, matrix.shape[0]) if is_one and matrix.size >= SMALLEST else 1
