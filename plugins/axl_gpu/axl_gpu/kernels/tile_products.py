"""Products of tiles by a Hopper's matrix units, over the dimension that is summed up.

Every kernel here that multiplies does it by `accumulate`. It has two forms with the same maths:
one that copies, waits and multiplies, and one that fetches tiles ahead. The first is what the
second means. Both are interpreted where there is no GPU.

Letters: M rows, N columns, K what is summed over.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

Reference = Any
"""A reference to an array in the memory of the GPU, or in that of a multiprocessor."""

Prepare = Callable[[Array, Reference, Reference], None]


@attrs.frozen(kw_only=True)
class Variant:
    """In which form a kernel is written, and what runs it.

    Args:
        is_pipelined: Whether tiles are fetched while others are multiplied.
        interpreter: Parameters of Pallas' interpreter for Mosaic GPU; None for a GPU.
    """

    is_pipelined: bool = True
    interpreter: Any = None

    def stored(self, x: Array, *, is_turned: bool) -> tuple[Array, bool]:
        """Returns an operand as it is to be stored, and whether its tiles are still to be turned.

        A GPU turns tiles as it multiplies. The interpreter cannot, and gets a turned copy.
        """
        if is_turned and self.interpreter is not None:
            return jnp.swapaxes(x, -1, -2), False
        return x, is_turned

    def laid_out(self, x: Array) -> Array:
        """Returns a tile spread over threads as the results of the matrix units are."""
        return x if self.interpreter else plgpu.layout_cast(x, plgpu.Layout.WGMMA)

    def index(self, shape: tuple[int, int], axis: int) -> Array:
        """Returns each element's place along an axis of a tile."""
        return self.laid_out(lax.broadcasted_iota(jnp.int32, shape, axis))


TUNED = Variant()


@attrs.frozen(kw_only=True)
class Operand:
    """One side of a product of tiles, in the memory of the GPU.

    Args:
        ref: `[size, K]` or `[K, size]`, where `size` is that of the tile.
        size: Rows, or columns, of the tile.
        axis: Which dimension of `ref` is summed over.
    """

    ref: Reference
    size: int
    axis: int

    def block(self, depth: int) -> tuple[int, int]:
        """Returns the shape of a tile as it is stored."""
        return (self.size, depth) if self.axis else (depth, self.size)

    def spec(self, depth: int, *, is_pipelined: bool) -> Any:
        """Returns how tiles follow one another."""
        block = self.block(depth)
        return plgpu.BlockSpec(
            block,
            (lambda k: (0, k)) if self.axis else (lambda k: (k, 0)),
            transforms=swizzled(block, self.ref.dtype),
            delay_release=int(is_pipelined),
        )

    def tile(self, k: Array, depth: int) -> Reference:
        """Returns the k-th tile in the memory of the GPU."""
        cut = pl.ds(k * depth, depth)
        return self.ref.at[:, cut] if self.axis else self.ref.at[cut, :]


def accumulate(
    total: Reference,
    lhs: Operand,
    rhs: Operand,
    *,
    num_steps: int | Array,
    depth: int,
    steps_ahead: int,
    variant: Variant,
    prepare: Prepare | None = None,
) -> None:
    """Adds `lhs rhs` to an accumulator `[M, N]`, in float32.

    Past the ends of an array there are zeros.

    Args:
        total: The accumulator.
        lhs: `[M, K]`, or stored the other way round.
        rhs: `[K, N]`, or stored the other way round.
        num_steps: How many tiles follow one another; more than 0.
        depth: K of a tile.
        steps_ahead: Tiles of each operand in shared memory at once, where pipelined.
        variant: The form.
        prepare: Is given the step and both tiles in shared memory, to change them there.
    """

    def multiply(k: Array, lhs_tile: Reference, rhs_tile: Reference) -> None:
        if prepare is not None:
            prepare(k, lhs_tile, rhs_tile)
        plgpu.wgmma(
            total,
            _turned(lhs_tile) if lhs.axis == 0 else lhs_tile,
            _turned(rhs_tile) if rhs.axis == 1 else rhs_tile,
        )

    if variant.is_pipelined:
        plgpu.emit_pipeline(
            lambda at, lhs_tile, rhs_tile: multiply(at[0], lhs_tile, rhs_tile),
            grid=(num_steps,),
            in_specs=[operand.spec(depth, is_pipelined=True) for operand in (lhs, rhs)],
            max_concurrent_steps=steps_ahead,
        )(lhs.ref, rhs.ref)
        return

    def one_after_another(lhs_tile: Reference, rhs_tile: Reference, arrived: Reference) -> None:
        @pl.loop(0, num_steps)
        def _(k: Array) -> None:
            plgpu.copy_gmem_to_smem(lhs.tile(k, depth), lhs_tile, arrived)
            plgpu.copy_gmem_to_smem(rhs.tile(k, depth), rhs_tile, arrived)
            plgpu.barrier_wait(arrived)
            multiply(k, lhs_tile, rhs_tile)
            plgpu.wgmma_wait(0)

    pl.run_scoped(
        one_after_another,
        _room(lhs, depth),
        _room(rhs, depth),
        plgpu.Barrier(num_arrivals=2),
    )


def swizzled(shape: tuple[int, ...], dtype: Any) -> tuple[Any, ...]:
    """Returns how a tile is laid out in shared memory for the matrix units."""
    bits = jnp.dtype(dtype).itemsize * 8
    swizzle = plgpu.find_swizzle(shape[-1] * bits)
    tiling = plgpu.TilingTransform((8, swizzle * 8 // bits))
    return (tiling, plgpu.SwizzleTransform(swizzle))


def launch(
    body: Callable[..., None],
    outputs: Any,
    *,
    grid: dict[str, int],
    variant: Variant,
) -> Callable[..., Any]:
    """Returns a kernel as a function of arrays, which has no batched form but one by one.

    Args:
        body: From references to inputs and outputs.
        outputs: Shapes and dtypes of what it writes.
        grid: Thread blocks along each axis.
        variant: The form.
    """
    run = plgpu.kernel(
        body,
        out_type=outputs,
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        interpret=variant.interpreter,
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return jax.custom_batching.sequential_vmap(run)


def store_tile(tile: Array, target: Reference) -> None:
    """Writes a tile to the memory of the GPU, rounded to its dtype."""

    @partial(pl.run_scoped, staged=plgpu.SMEM(tile.shape, target.dtype))
    def _(staged: Reference) -> None:
        staged[...] = tile.astype(target.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staged, target)
        plgpu.wait_smem_to_gmem(0)


def _turned(tile: Reference) -> Reference:
    return plgpu.transpose_ref(tile, (1, 0))


def _room(operand: Operand, depth: int) -> Any:
    block = operand.block(depth)
    return plgpu.SMEM(block, operand.ref.dtype, transforms=swizzled(block, operand.ref.dtype))
