"""The matrix products that attention is made of, as instructions of a warp group.

`TENSOR_CORES` are Hopper's own: both operands in shared memory, or the left one in registers, which
JAX's interpreter of Mosaic GPU does not know. `ARITHMETIC` computes the same with what it knows, so
that every copy, barrier, loop and mask of a kernel is interpreted, and only these products are
replaced, and additions to the GPU's memory.

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
    """Do nothing while a product is computed."""


class Addition(NamedTuple):
    """The operands of `sum + a b`; `a` is in registers."""

    sum_MN: Array
    a_MD: Array
    b_DN: Ref


class Matmuls(NamedTuple):
    """How a warp group multiplies.

    Attributes:
        transposed: `(a_MD, b_ND, meanwhile) -> a b^T`, of two references, float32; `meanwhile()`
            runs once the product is under way.
        both_transposed: `(a_MD, b_ND, c_MD, d_ND, between) -> between(a b^T), c d^T`; `between`
            runs while the second product is under way.
        transposed_and_added: `(a_MD, b_ND, addition, between, meanwhile) -> between(a b^T), sum`;
            `between` runs while the `Addition` is under way, `meanwhile` while both are.
        added: `(sum_MN, a_MD, b_DN, meanwhile) -> sum + a b`; `a` is in registers.
        both_added: `(first, second, operands, use) -> sums` of two `Addition`s, and in between
            `use(a^T b)` of the references `a_DM, b_DN` that `operands()` returns; that runs while
            the first is under way, and `use` when it is done and the second is under way.
        accumulated: `(source, target)`; adds float32 of shared memory to the GPU's memory, at
            once with whatever other thread blocks add there.
        interpreter: Parameters of Pallas' interpreter for Mosaic GPU; None for a GPU.
    """

    transposed: Callable[..., Array]
    both_transposed: Callable[..., tuple[Any, Array]]
    transposed_and_added: Callable[..., tuple[Any, Array]]
    added: Callable[..., Array]
    both_added: Callable[..., tuple[Array, Array]]
    accumulated: Callable[[Ref, Ref], None]
    interpreter: Any = None

    def each_transposed(
        self, a_MD: Ref, b_ND: Ref, c_MD: Ref, d_ND: Ref, between: Callable[[Array], Any]
    ) -> tuple[Any, Array]:
        """Return what `both_transposed` does, one after the other, with fewer registers."""
        return between(self.transposed(a_MD, b_ND)), self.transposed(c_MD, d_ND)


def _tensor_core_transposed(a_MD: Ref, b_ND: Ref, meanwhile: Callable[[], None] = nothing) -> Array:
    def multiply(sum_MN: Ref) -> Array:
        plgpu.wgmma(sum_MN, a_MD, b_ND.transpose((1, 0)))
        # `wgmma` only begins the product; reading the sums is what waits. Work in between is
        # free.
        meanwhile()
        product: Array = sum_MN[...]
        return product

    product: Array = pl.run_scoped(multiply, _sums(a_MD.shape[0], b_ND.shape[0]))
    return product


def _tensor_core_both_transposed(
    a_MD: Ref, b_ND: Ref, c_MD: Ref, d_ND: Ref, between: Callable[[Array], Any]
) -> tuple[Any, Array]:
    def multiply(first_MN: Ref, second_MN: Ref) -> tuple[Any, Array]:
        plgpu.wgmma(first_MN, a_MD, b_ND.transpose((1, 0)))
        plgpu.wgmma(second_MN, c_MD, d_ND.transpose((1, 0)))
        # Products of a warp group end in the order in which they began, so to wait for all but
        # one is to wait for the first. The second must be begun before: begun after `between`,
        # nothing would run under it.
        result = between(plgpu.wgmma_accumulator_load(first_MN, wait_n=1))
        return result, second_MN[...]

    return pl.run_scoped(
        multiply, _sums(a_MD.shape[0], b_ND.shape[0]), _sums(c_MD.shape[0], d_ND.shape[0])
    )


def _tensor_core_transposed_and_added(
    a_MD: Ref,
    b_ND: Ref,
    addition: Addition,
    between: Callable[[Array], Any],
    meanwhile: Callable[[], None],
) -> tuple[Any, Array]:
    def multiply(first: Ref, sums: Ref) -> tuple[Any, Array]:
        # Before any product is begun: writing registers while one is under way makes the compiler
        # wait for it. The product of logits is begun first, since `between` waits for it.
        sums[...] = addition.sum_MN
        plgpu.wgmma(first, a_MD, b_ND.transpose((1, 0)))
        plgpu.wgmma(sums, addition.a_MD, addition.b_DN)
        meanwhile()
        result = between(plgpu.wgmma_accumulator_load(first, wait_n=1))
        return result, sums[...]

    return pl.run_scoped(
        multiply, _sums(a_MD.shape[0], b_ND.shape[0]), _sums(*addition.sum_MN.shape)
    )


def _tensor_core_added(
    sum_MN: Array, a_MD: Array, b_DN: Ref, meanwhile: Callable[[], None] = nothing
) -> Array:
    def multiply(sum_MN: Ref) -> None:
        plgpu.wgmma(sum_MN, a_MD, b_DN)
        meanwhile()

    total: Array = pl.run_state(multiply)(plgpu.WGMMAAccumulatorRef.init(sum_MN))
    return total


def _tensor_core_both_added(
    first: Addition,
    second: Addition,
    operands: Callable[[], tuple[Ref, Ref]],
    use: Callable[[Array], None],
) -> tuple[Array, Array]:
    def multiply(sums: tuple[Ref, Ref]) -> None:
        plgpu.wgmma(sums[0], first.a_MD, first.b_DN)
        a_DM, b_DN = operands()

        def between(sum_MN: Ref) -> None:
            plgpu.wgmma(sum_MN, a_DM.transpose((1, 0)), b_DN)
            plgpu.wgmma(sums[1], second.a_MD, second.b_DN)
            # Three are under way: all but the last are done here, the first one among them.
            use(plgpu.wgmma_accumulator_load(sum_MN, wait_n=1))

        pl.run_scoped(between, _sums(a_DM.shape[1], b_DN.shape[1]))

    init = plgpu.WGMMAAccumulatorRef.init
    totals: tuple[Array, Array] = pl.run_state(multiply)((init(first.sum_MN), init(second.sum_MN)))
    return totals


def _sums(num_rows: int, num_columns: int) -> Any:
    return plgpu.WGMMAAccumulatorRef((num_rows, num_columns), jnp.float32)


def _tma_accumulated(source: Ref, target: Ref) -> None:
    # The copy engine adds in the L2 cache: no thread reads what is there, and none waits for
    # others.
    plgpu.copy_smem_to_gmem(source, target, reduction_op="add")


def _arithmetic_transposed(a_MD: Ref, b_ND: Ref, meanwhile: Callable[[], None] = nothing) -> Array:
    meanwhile()
    return _matmul(a_MD[...], b_ND[...], (1, 1))


def _arithmetic_both_transposed(
    a_MD: Ref, b_ND: Ref, c_MD: Ref, d_ND: Ref, between: Callable[[Array], Any]
) -> tuple[Any, Array]:
    return between(_arithmetic_transposed(a_MD, b_ND)), _arithmetic_transposed(c_MD, d_ND)


def _arithmetic_transposed_and_added(
    a_MD: Ref,
    b_ND: Ref,
    addition: Addition,
    between: Callable[[Array], Any],
    meanwhile: Callable[[], None],
) -> tuple[Any, Array]:
    meanwhile()
    return between(_arithmetic_transposed(a_MD, b_ND)), _arithmetic_added(*addition)


def _arithmetic_added(
    sum_MN: Array, a_MD: Array, b_DN: Ref, meanwhile: Callable[[], None] = nothing
) -> Array:
    meanwhile()
    return sum_MN + _matmul(a_MD, b_DN[...], (1, 0))


def _arithmetic_both_added(
    first: Addition,
    second: Addition,
    operands: Callable[[], tuple[Ref, Ref]],
    use: Callable[[Array], None],
) -> tuple[Array, Array]:
    total = _arithmetic_added(*first)
    a_DM, b_DN = operands()
    use(_matmul(a_DM[...], b_DN[...], (0, 0)))
    return total, _arithmetic_added(*second)


def _arithmetic_accumulated(source: Ref, target: Ref) -> None:
    target[...] += source[...]


def _matmul(a: Array, b: Array, summed: tuple[int, int]) -> Array:
    dimensions = (((summed[0],), (summed[1],)), ((), ()))
    return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


TENSOR_CORES = Matmuls(
    _tensor_core_transposed,
    _tensor_core_both_transposed,
    _tensor_core_transposed_and_added,
    _tensor_core_added,
    _tensor_core_both_added,
    _tma_accumulated,
)
ARITHMETIC = Matmuls(
    _arithmetic_transposed,
    _arithmetic_both_transposed,
    _arithmetic_transposed_and_added,
    _arithmetic_added,
    _arithmetic_both_added,
    _arithmetic_accumulated,
)
