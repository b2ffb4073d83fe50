"""The two matrix products that attention is made of, as instructions of a warp group.

`TENSOR_CORES` are Hopper's own: both operands in shared memory, or the left one in registers, which
JAX's interpreter of Mosaic GPU does not know. `ARITHMETIC` computes the same with what it knows, so
that every copy, barrier, loop and mask of a kernel is interpreted, and only these products are
replaced.

Letters: M rows of the result, N its columns, D what is summed over.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

Ref = Any
"""A reference to memory; Pallas has no public type for it."""


def nothing() -> None:
    """Does nothing while a product is computed."""


class Matmuls(NamedTuple):
    """How a warp group multiplies.

    Attributes:
        transposed: `(a_MD, b_ND, meanwhile) -> a b^T`, of two references, float32; `meanwhile()`
            runs once the product is under way.
        added: `(sum_MN, a_MD, b_DN, meanwhile) -> sum + a b`; `a` is in registers.
        interpreter: Parameters of Pallas' interpreter for Mosaic GPU; None for a GPU.
    """

    transposed: Callable[..., Array]
    added: Callable[..., Array]
    interpreter: Any = None


def _tensor_core_transposed(a_MD: Ref, b_ND: Ref, meanwhile: Callable[[], None] = nothing) -> Array:
    def multiply(sum_MN: Ref) -> Array:
        plgpu.wgmma(sum_MN, a_MD, b_ND.transpose((1, 0)))
        meanwhile()
        product: Array = sum_MN[...]
        return product

    shape = (a_MD.shape[0], b_ND.shape[0])
    product: Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))
    return product


def _tensor_core_added(
    sum_MN: Array, a_MD: Array, b_DN: Ref, meanwhile: Callable[[], None] = nothing
) -> Array:
    def multiply(sum_MN: Ref) -> None:
        plgpu.wgmma(sum_MN, a_MD, b_DN)
        meanwhile()

    total: Array = pl.run_state(multiply)(plgpu.WGMMAAccumulatorRef.init(sum_MN))
    return total


def _arithmetic_transposed(a_MD: Ref, b_ND: Ref, meanwhile: Callable[[], None] = nothing) -> Array:
    meanwhile()
    return _matmul(a_MD[...], b_ND[...], 1)


def _arithmetic_added(
    sum_MN: Array, a_MD: Array, b_DN: Ref, meanwhile: Callable[[], None] = nothing
) -> Array:
    meanwhile()
    return sum_MN + _matmul(a_MD, b_DN[...], 0)


def _matmul(a: Array, b: Array, summed: int) -> Array:
    dimensions = (((1,), (summed,)), ((), ()))
    return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


TENSOR_CORES = Matmuls(_tensor_core_transposed, _tensor_core_added)
ARITHMETIC = Matmuls(_arithmetic_transposed, _arithmetic_added)
