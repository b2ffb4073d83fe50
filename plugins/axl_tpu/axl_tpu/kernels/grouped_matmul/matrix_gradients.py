"""The grouped product's kernel for the gradient of the matrices.

Letters: R rows, E groups, D input width, F output width, C rows of a block, P visits.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from axl_tpu.kernels.grouped_matmul.block_sizes import GroupBlockSchedule, GroupedBlockSizes, matmul


def matrices_gradient(
    x_RD: Array,
    dy_RF: Array,
    group_sizes_E: Array,
    block_sizes: GroupedBlockSizes,
    *,
    dtype: DTypeLike,
    interpret: Any,
) -> Array:
    """Return `dw_EDF`: of each group the sum over its rows of `x^T dy`; zeros where it has none.

    Sums are float32 and stay in VMEM for all rows of a group.

    Args:
        x_RD: Rows, sorted by group.
        dy_RF: Gradients of the result's rows.
        group_sizes_E: Rows of each group.
        block_sizes: Block sizes.
        dtype: Of the result.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    num_rows, width, out_width, num_groups = *x_RD.shape, dy_RF.shape[1], group_sizes_E.shape[0]
    rows, height, columns = block_sizes.of_gradient(num_rows, width, out_width)
    # By groups, and each at least once: the gradient of a group without rows has to be written,
    # too.
    schedule = GroupBlockSchedule.of_groups(group_sizes_E, num_rows, rows)
    num_blocks = -(-num_rows // rows)
    dw_EDF: Array = pl.pallas_call(
        partial(_kernel, rest=num_rows % rows, num_blocks=num_blocks),
        out_shape=jax.ShapeDtypeStruct((num_groups, width, out_width), dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(schedule),
            grid=(-(-width // height), -(-out_width // columns), schedule.group_P.shape[0]),
            in_specs=[
                pl.BlockSpec((rows, height), lambda d, f, p, g, b, *_: (b[p], d)),
                pl.BlockSpec((rows, columns), lambda d, f, p, g, b, *_: (b[p], f)),
            ],
            out_specs=pl.BlockSpec((None, height, columns), lambda d, f, p, g, b, *_: (g[p], d, f)),
            scratch_shapes=[pltpu.VMEM((height, columns), jnp.float32)],
        ),
        compiler_params=block_sizes.compiler_params(("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * num_rows * width * out_width,
            transcendentals=0,
            bytes_accessed=-(-out_width // columns) * x_RD.nbytes
            + -(-width // height) * dy_RF.nbytes,
        ),
        interpret=interpret,
        name="tpu_grouped_matmul_matrices",
    )(*schedule, x_RD, dy_RF)
    return dw_EDF


def _kernel(
    group_ref: Any,
    block_ref: Any,
    is_active_ref: Any,
    start_ref: Any,
    end_ref: Any,
    x_ref: Any,
    dy_ref: Any,
    dw_ref: Any,
    sum_ref: Any,
    *,
    rest: int,
    num_blocks: int,
) -> None:
    p, num_schedule_steps = pl.program_id(2), pl.num_programs(2)
    group, block = group_ref[p], block_ref[p]
    start, end, rows = start_ref[group], end_ref[group], x_ref.shape[0]
    first_row = block * rows
    is_active = is_active_ref[p] == 1

    @pl.when((p == 0) | (group_ref[jnp.maximum(p - 1, 0)] != group))
    def _() -> None:
        sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)

    def add(is_whole: bool) -> None:
        x_CD, dy_CF = x_ref[...], dy_ref[...]
        if not is_whole:
            x_CD, dy_CF = (_own(one, start - first_row, end - first_row) for one in (x_CD, dy_CF))
        sum_ref[...] += matmul(x_CD, dy_CF, ((0,), (0,)))

    is_whole = (start <= first_row) & (first_row + rows <= end)
    # The last block reaches past the rows, where there is whatever was in VMEM.
    if rest:
        is_whole &= block < num_blocks - 1
    pl.when(is_active & is_whole)(partial(add, is_whole=True))
    pl.when(is_active & ~is_whole & (end > start))(partial(add, is_whole=False))

    @pl.when(
        (p == num_schedule_steps - 1)
        | (group_ref[jnp.minimum(p + 1, num_schedule_steps - 1)] != group)
    )
    def _() -> None:
        dw_ref[...] = sum_ref[...].astype(dw_ref.dtype)


def _own(x: Array, start: Array, end: Array) -> Array:
    """Return a block with zeros for rows that are not in `[start, end)`."""
    row = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    # By way of float32, since vector units select in 32 bits.
    return jnp.where((row >= start) & (row < end), x.astype(jnp.float32), 0.0).astype(x.dtype)
