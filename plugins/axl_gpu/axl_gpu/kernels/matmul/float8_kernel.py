"""The Hopper kernel of products of float8 operands, with scale and cast fused.

Letters: R rows of the result, N columns of it, K what is summed over.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.matmul.block_sizes import MatmulBlockSizes
from axl_gpu.kernels.matmul.pipeline import (
    TUNED,
    Multiply,
    Reference,
    Variant,
    in_warp_groups,
    launch,
    place,
)


def float8_matmul_kernel(
    lhs_RK: Array,
    rhs_NK: Array,
    scale: Array,
    *,
    dtype: str,
    block_sizes: MatmulBlockSizes,
    variant: Variant = TUNED,
) -> Array:
    """Return `[R, N]`, `scale lhs rhs^T`.

    Args:
        lhs_RK: Any sizes; copied where they are not full tiles.
        rhs_NK: Of the same format.
        scale: A float32 scalar.
        dtype: The result's.
        block_sizes: Sizes, of which smaller ones are taken for a small result.
        variant: The form of the kernel.
    """
    (num_rows, _), num_columns = lhs_RK.shape, rhs_NK.shape[0]
    # Zeros along K add nothing to sums. Small results are padded to 64 and not to 128, the larger
    # of the two tiles.
    lhs_RK = _padded(lhs_RK, 128 if num_rows > 64 else 64, block_sizes.depth)
    rhs_NK = _padded(rhs_NK, 128 if num_columns > 64 else 64, block_sizes.depth)
    (all_rows, width), all_columns = lhs_RK.shape, rhs_NK.shape[0]
    block_sizes = block_sizes.within(rows=all_rows, columns=all_columns)
    shape = (all_rows // block_sizes.rows, all_columns // block_sizes.all_columns)
    num_steps = width // block_sizes.depth
    rhs, is_transposed = variant.stored(rhs_NK, is_transposed=True)

    def body(scale: Any, lhs: Any, rhs: Any, out: Any) -> None:
        row, column = place(lax.axis_index("tile"), shape, block_sizes.band)
        rows = pl.ds(row * block_sizes.rows, block_sizes.rows)

        def columns(warp_group: Any) -> Any:
            return pl.ds(
                column * block_sizes.all_columns + warp_group * block_sizes.columns,
                block_sizes.columns,
            )

        def depth(step: Array) -> Any:
            return pl.ds(step * block_sizes.depth, block_sizes.depth)

        def lhs_tile(step: Array, warp_group: Any) -> Reference:
            return lhs.at[rows, depth(step)]

        def rhs_tile(step: Array, warp_group: Any) -> Reference:
            at = (columns(warp_group), depth(step))
            return rhs.at[at if is_transposed else at[::-1]]

        def work(warp_group: Any, multiply: Multiply, staged: Reference) -> None:
            def products(total: Reference) -> Array:
                multiply(total, first=0, count=num_steps)
                return total[...]

            tile = pl.run_scoped(products, plgpu.ACC((block_sizes.rows, block_sizes.columns)))
            # Scaled before rounding, in registers: a product that leaves unscaled in 16 bits may
            # overflow.
            staged[...] = (tile * scale[0]).astype(out.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(staged, out.at[rows, columns(warp_group)])
            plgpu.wait_smem_to_gmem(0)

        sides = {
            "lhs": block_sizes.side(lhs_tile, lhs.dtype, size=block_sizes.rows),
            "rhs": block_sizes.side(
                rhs_tile,
                rhs.dtype,
                size=block_sizes.columns,
                is_rhs=True,
                is_transposed=is_transposed,
            ),
        }
        in_warp_groups(work, block_sizes.steps(num_steps, **sides, dtype=out.dtype), variant)

    run = launch(
        body,
        jax.ShapeDtypeStruct((all_rows, all_columns), dtype),
        name="float8_matmul",
        grid={"tile": math.prod(shape)},
        num_groups=block_sizes.warp_groups,
        variant=variant,
    )
    out: Array = run(scale.reshape(1), lhs_RK, rhs)
    return out[:num_rows, :num_columns]


def _padded(x: Array, rows: int, columns: int) -> Array:
    more = (-x.shape[0] % rows, -x.shape[1] % columns)
    return jnp.pad(x, [(0, one) for one in more]) if any(more) else x
