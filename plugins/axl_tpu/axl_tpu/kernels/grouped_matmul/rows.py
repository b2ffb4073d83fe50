"""The grouped product's kernel for rows: the output, and with transposed matrices the gradient of
the rows.

Letters: R rows, E groups, K width that is summed over, N width of the result, C rows of a block,
P visits.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axl_tpu.kernels.grouped_matmul.block_sizes import GroupBlockSchedule, GroupedBlockSizes, matmul


def rows_matmul(
    x_RK: Array,
    w: Array,
    group_sizes_E: Array,
    block_sizes: GroupedBlockSizes,
    *,
    is_transposed: bool,
    interpret: Any,
) -> Array:
    """Return `y_RN`: rows times the matrix of their group; zeros for rows of none.

    Columns of a block stay while all rows go by, so that each matrix is read once, if blocks hold
    all of K.

    Args:
        x_RK: Rows, sorted by group.
        w: Matrices `[E, K, N]`, or `[E, N, K]` if they are transposed.
        group_sizes_E: Rows of each group.
        block_sizes: Block sizes.
        is_transposed: Whether matrices are transposed.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    num_rows, summed = x_RK.shape
    num_groups, columns = w.shape[0], w.shape[1 if is_transposed else 2]
    block_sizes = block_sizes.fitted(num_rows, summed, columns)
    schedule = GroupBlockSchedule.of_blocks(group_sizes_E, num_rows, block_sizes.rows)
    num_parts = -(-summed // block_sizes.summed)

    def matrix(n: Any, p: Any, k: Any, group_P: Any, *_: Any) -> tuple[Any, ...]:
        part = (n, k) if is_transposed else (k, n)
        # Rows of no group have no matrix; the last one's is fetched and not used.
        return (jnp.minimum(group_P[p], num_groups - 1), *part)

    shape = (
        (block_sizes.columns, block_sizes.summed)
        if is_transposed
        else (block_sizes.summed, block_sizes.columns)
    )
    rest = summed % block_sizes.summed
    y_RN: Array = pl.pallas_call(
        partial(_kernel, num_groups=num_groups, rest=rest, is_transposed=is_transposed),
        out_shape=jax.ShapeDtypeStruct((num_rows, columns), x_RK.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(schedule),
            # Columns outermost: a group's matrix block stays for all its blocks of rows. Rows are
            # read again for each block of columns, which there are few of.
            grid=(-(-columns // block_sizes.columns), schedule.group_P.shape[0], num_parts),
            in_specs=[
                pl.BlockSpec(
                    (block_sizes.rows, block_sizes.summed), lambda n, p, k, g, b, *_: (b[p], k)
                ),
                pl.BlockSpec((None, *shape), matrix),
            ],
            out_specs=pl.BlockSpec(
                (block_sizes.rows, block_sizes.columns), lambda n, p, k, g, b, *_: (b[p], n)
            ),
            scratch_shapes=[pltpu.VMEM((block_sizes.rows, block_sizes.columns), jnp.float32)],
        ),
        compiler_params=block_sizes.compiler_params(("parallel", "arbitrary", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * num_rows * summed * columns,
            transcendentals=0,
            bytes_accessed=w.nbytes + -(-columns // block_sizes.columns) * x_RK.nbytes,
        ),
        interpret=interpret,
        name="tpu_grouped_matmul",
    )(*schedule, x_RK, w)
    return y_RN


def _kernel(
    group_ref: Any,
    block_ref: Any,
    is_active_ref: Any,
    start_ref: Any,
    end_ref: Any,
    x_ref: Any,
    w_ref: Any,
    y_ref: Any,
    sum_ref: Any,
    *,
    num_groups: int,
    rest: int,
    is_transposed: bool,
) -> None:
    p, k, last = pl.program_id(1), pl.program_id(2), pl.num_programs(2) - 1
    group, block = group_ref[p], block_ref[p]
    is_active = is_active_ref[p] == 1

    @pl.when(is_active & (k == 0))
    def _() -> None:
        sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)

    def add(is_last: bool) -> None:
        x_CK, w_block = x_ref[...], w_ref[...]
        # Both sides, since past the end there is whatever was in VMEM, and 0 * NaN is NaN.
        if is_last and rest:
            x_CK = _first(x_CK, rest, 1)
            w_block = _first(w_block, rest, 1 if is_transposed else 0)
        sum_ref[...] += matmul(x_CK, w_block, ((1,), (1 if is_transposed else 0,)))

    has_matrix = is_active & (group < num_groups)
    pl.when(has_matrix & (k == last))(partial(add, is_last=True))
    pl.when(has_matrix & (k < last))(partial(add, is_last=False))

    @pl.when(is_active & (k == last))
    def _() -> None:
        row_C1 = block * y_ref.shape[0] + lax.broadcasted_iota(jnp.int32, (y_ref.shape[0], 1), 0)
        is_own_C1 = (row_C1 >= start_ref[group]) & (row_C1 < end_ref[group])
        is_new = (p == 0) | (block_ref[jnp.maximum(p - 1, 0)] != block)
        # A block of several groups is visited once by each in turn, and stays in VMEM: each
        # writes its rows over what the ones before left. At the first visit the block holds
        # nothing yet.
        before_CN = jnp.where(is_new, 0.0, y_ref[...].astype(jnp.float32))
        y_ref[...] = jnp.where(is_own_C1, sum_ref[...], before_CN).astype(y_ref.dtype)


def _first(x: Array, num: int, axis: int) -> Array:
    """Return a block with zeros after the first so many entries along an axis."""
    index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return jnp.where(index < num, x.astype(jnp.float32), 0.0).astype(x.dtype)
