"""Products of tiles by a Hopper's matrix units, summed up over one dimension in steps.

Every kernel here that multiplies does it by `in_warp_groups`. It has two forms with the same maths:
in the simple one, which says what is meant, a warp group copies two tiles, waits, and multiplies;
in the tuned one a warp group does nothing but fetch tiles ahead, for one or two others that
multiply. Both are interpreted where there is no GPU.

Letters: M rows, N columns, K what is summed over.
"""

from collections.abc import Callable
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.launch import mosaic_kernel

Reference = Any
"""A reference to an array in the memory of the GPU, or in that of a multiprocessor."""

Prepare = Callable[[Array, Reference, Reference], None]

FETCHING_REGISTERS = 40
REGISTERS = 512
"""A thread of each warp group together; one alone has at most 256."""

AXIS = "warp_group"


@attrs.frozen(kw_only=True)
class Variant:
    """In which form a kernel is written, and what runs it.

    Args:
        is_tuned: Whether a warp group fetches tiles while others multiply.
        interpreter: Parameters of Pallas' interpreter for Mosaic GPU; None for a GPU.
    """

    is_tuned: bool = True
    interpreter: Any = None

    def stored(self, x: Array, *, is_transposed: bool) -> tuple[Array, bool]:
        """Return an operand to store, and whether its tiles are still to be transposed.

        A GPU transposes tiles as it multiplies. The interpreter cannot, and gets a copy.
        """
        # Only there: on a GPU a copy would take as much memory as the weight.
        if is_transposed and self.interpreter is not None:
            return jnp.swapaxes(x, -1, -2), False
        return x, is_transposed

    def tiled(self, x: Array) -> Array:
        """Return a tile spread over threads as the results of the matrix units are."""
        # Operands of one operation need one layout, and the compiler does not convert between
        # them unasked.
        return x if self.interpreter else plgpu.layout_cast(x, plgpu.Layout.WGMMA)

    def by_row(self, x: Array) -> Array:
        """Return a number for each row of a tile, spread over threads as its rows are."""
        return x if self.interpreter else plgpu.layout_cast(x, plgpu.Layout.WGMMA.reduce(1))

    def load_by_row(self, numbers: Reference, p: Array) -> Array:
        """Return the p-th row of numbers in the memory of the GPU, spread like `by_row`."""
        if self.interpreter:
            row: Array = numbers[p]
            return row
        layout = plgpu.Layout.WGMMA.reduce(1)
        # Not vectorized: in this layout a thread's rows are 8 apart, and several threads have the
        # same ones.
        return plgpu.load(numbers, (p,), layout=layout, optimized=False)

    def index(self, shape: tuple[int, ...], axis: int) -> Array:
        """Return each element's place along an axis of a tile."""
        return self.tiled(lax.broadcasted_iota(jnp.int32, shape, axis))


TUNED = Variant()


@attrs.frozen(kw_only=True)
class Side:
    """One side of the products.

    Args:
        tile: From the step and the warp group to a tile in the memory of the GPU.
        shape: Of a tile, as it is stored.
        dtype: Of 8 or 16 bits.
        is_transposed: Whether rows are stored as columns.
    """

    tile: Callable[[Array, Any], Reference]
    shape: tuple[int, int]
    dtype: Any
    is_transposed: bool = False

    def room(self, *leading: int) -> Any:
        """Return shared memory for so many tiles."""
        bits = jnp.dtype(self.dtype).itemsize * 8
        # The matrix units read tiles of 8 rows of at most 128 bytes, swizzled so that a column's
        # elements are in different banks of shared memory.
        swizzle = plgpu.find_swizzle(self.shape[-1] * bits)
        tiling = plgpu.TilingTransform((8, swizzle * 8 // bits))
        transforms = (tiling, plgpu.SwizzleTransform(swizzle))
        return plgpu.SMEM((*leading, *self.shape), self.dtype, transforms=transforms)

    def operand(self, tile: Reference) -> Reference:
        """Return a tile in shared memory as the matrix units are to read it."""
        return tile.transpose((1, 0)) if self.is_transposed else tile


@attrs.frozen(kw_only=True)
class Steps:
    """Pairs of tiles, of which each warp group multiplies its own.

    Args:
        lhs: `[M, K]`, shared by the warp groups.
        rhs: `[K, N]`, of each warp group.
        num_steps: How many pairs there are.
        num_groups: Warp groups that multiply: one or two.
        num_ahead: Pairs in shared memory at once, where tuned.
        staged: Shared memory of each warp group for its results.
    """

    lhs: Side
    rhs: Side
    num_steps: int | Array
    num_groups: int
    num_ahead: int
    staged: jax.ShapeDtypeStruct

    def staging(self, *leading: int) -> Any:
        """Return shared memory for so many results."""
        return plgpu.SMEM((*leading, *self.staged.shape), self.staged.dtype)


class Multiply:
    """Adds products of the steps' tiles to an accumulator: what a warp group is given."""

    def __call__(
        self, total: Reference, *, first: Any, count: Any, prepare: Prepare | None = None
    ) -> None:
        """Add the products of `count` steps from `first` on, in float32.

        Each step is taken once, in their order.

        Args:
            total: The accumulator, `[M, N]`.
            first: The step to begin with.
            count: How many steps.
            prepare: Is given the step and both tiles in shared memory, to change them there. All
                warp groups change the shared tile in the same way.
        """
        raise NotImplementedError


Work = Callable[[Any, Multiply, Reference], None]
"""Of a warp group: its number, what multiplies, and where it can put its results."""


def in_warp_groups(work: Work, steps: Steps, variant: Variant) -> None:
    """Run `work` in each warp group, of which each multiplies all steps."""
    if not variant.is_tuned:
        for group in range(steps.num_groups):

            def alone(staged: Reference, *own: Reference, group: int = group) -> None:
                work(group, _OneByOne(steps, group, *own), staged)

            pl.run_scoped(
                alone,
                steps.staging(),
                steps.lhs.room(),
                steps.rhs.room(),
                plgpu.Barrier(num_arrivals=2),
            )
        return

    def share(staged: Reference, *shared: Reference) -> None:
        group = lax.axis_index(AXIS)

        @pl.when(group < steps.num_groups)
        def _() -> None:
            # `setmaxnreg` takes multiples of 8, and a thread addresses at most 255 registers.
            each = min(256, (REGISTERS - FETCHING_REGISTERS) // steps.num_groups) // 8 * 8
            plgpu.set_max_registers(min(each, 240), action="increase")
            work(group, _FetchedAhead(steps, group, *shared), staged.at[group])

        @pl.when(group == steps.num_groups)
        def _() -> None:
            plgpu.set_max_registers(FETCHING_REGISTERS, action="decrease")
            _fetch(steps, *shared)

    pl.run_scoped(
        share,
        steps.staging(steps.num_groups),
        steps.lhs.room(steps.num_ahead),
        steps.rhs.room(steps.num_ahead, steps.num_groups),
        # One copy of the shared left tile, and one of each group's right tile.
        plgpu.Barrier(num_arrivals=1 + steps.num_groups, num_barriers=steps.num_ahead),
        plgpu.Barrier(num_arrivals=steps.num_groups, num_barriers=steps.num_ahead),
        collective_axes=AXIS,
    )


@attrs.frozen
class _OneByOne(Multiply):
    steps: Steps
    group: int
    lhs: Reference
    rhs: Reference
    arrived: Reference

    def __call__(
        self, total: Reference, *, first: Any, count: Any, prepare: Prepare | None = None
    ) -> None:
        sides = self.steps.lhs, self.steps.rhs

        @pl.loop(0, count)
        def _(k: Array) -> None:
            step = first + k
            plgpu.copy_gmem_to_smem(sides[0].tile(step, self.group), self.lhs, self.arrived)
            plgpu.copy_gmem_to_smem(sides[1].tile(step, self.group), self.rhs, self.arrived)
            plgpu.barrier_wait(self.arrived)
            if prepare is not None:
                prepare(step, self.lhs, self.rhs)
            plgpu.wgmma(total, sides[0].operand(self.lhs), sides[1].operand(self.rhs))
            plgpu.wgmma_wait(0)


@attrs.frozen
class _FetchedAhead(Multiply):
    steps: Steps
    group: Array
    lhs: Reference
    rhs: Reference
    arrived: Reference
    consumed: Reference

    def __call__(
        self, total: Reference, *, first: Any, count: Any, prepare: Prepare | None = None
    ) -> None:
        num_ahead = self.steps.num_ahead

        @pl.loop(0, count)
        def _(k: Array) -> None:
            step = first + k
            slot = lax.rem(step, jnp.int32(num_ahead))
            plgpu.barrier_wait(self.arrived.at[slot])
            lhs, rhs = self.lhs.at[slot], self.rhs.at[slot, self.group]
            if prepare is not None:
                prepare(step, lhs, rhs)
            plgpu.wgmma(total, self.steps.lhs.operand(lhs), self.steps.rhs.operand(rhs))
            # Not of this step: one product stays under way while the next tiles are waited for.
            plgpu.wgmma_wait(1)  # of the step before, whose tiles are free now

            @pl.when(k > 0)
            def _() -> None:
                self._release(step - 1)

        plgpu.wgmma_wait(0)

        @pl.when(jnp.int32(count) > 0)
        def _() -> None:
            self._release(first + count - 1)

    def _release(self, step: Array) -> None:
        slot = lax.rem(step, jnp.int32(self.steps.num_ahead))
        plgpu.barrier_arrive(self.consumed.at[slot])


def _fetch(
    steps: Steps, lhs: Reference, rhs: Reference, arrived: Reference, consumed: Reference
) -> None:
    """Copy tiles into shared memory as soon as there is room, and wait until all were used."""
    num_ahead = jnp.int32(steps.num_ahead)

    @pl.loop(0, steps.num_steps)
    def _(step: Array) -> None:
        slot = lax.rem(step, num_ahead)

        @pl.when(step >= num_ahead)
        def _() -> None:
            plgpu.barrier_wait(consumed.at[slot])

        plgpu.copy_gmem_to_smem(steps.lhs.tile(step, 0), lhs.at[slot], arrived.at[slot])
        for group in range(steps.num_groups):
            tile = steps.rhs.tile(step, group)
            plgpu.copy_gmem_to_smem(tile, rhs.at[slot, group], arrived.at[slot])

    # Each arrival is waited for once, so that barriers end in the phase in which they began.
    @pl.loop(jnp.maximum(steps.num_steps - num_ahead, 0), steps.num_steps)
    def _(step: Array) -> None:
        plgpu.barrier_wait(consumed.at[lax.rem(step, num_ahead)])


def launch(
    body: Callable[..., None],
    outputs: Any,
    *,
    name: str,
    grid: dict[str, int],
    num_groups: int,
    variant: Variant,
) -> Callable[..., Any]:
    """Return a kernel as a function of arrays, which has no batched form but one by one.

    Args:
        body: From references to inputs and outputs; it multiplies by `in_warp_groups` once.
        outputs: Shapes and dtypes of what it writes.
        name: What profilers show.
        grid: Thread blocks along each axis, the last the fastest.
        num_groups: Warp groups that multiply.
        variant: The form.
    """
    threads: dict[str, Any] = {}
    if variant.is_tuned:
        threads = {"num_threads": num_groups + 1, "thread_name": AXIS}
    run = mosaic_kernel(
        body,
        outputs,
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        interpret=variant.interpreter,
        kernel_name=name,
        compiler_params=plgpu.CompilerParams(
            approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup
        ),
        **threads,
    )
    # Pallas derives no batched form of a Mosaic GPU kernel.
    return jax.custom_batching.sequential_vmap(run)


def place(index: Array, shape: tuple[int, int], band: int) -> tuple[Array, Array]:
    """Return the row and the column of tiles that the n-th thread block works on.

    Bands of so many rows are gone through by columns, so that what blocks that run together read
    is in the cache.
    """
    num_rows, num_columns = shape
    first = lax.div(index, jnp.int32(band * num_columns)) * band
    # The last band may be lower. Bands by rows keep both sides of the products that run at once
    # small: by full columns each thread block would read rows that the cache has dropped since.
    height = jnp.minimum(num_rows - first, band)
    within = index - first * num_columns
    return first + lax.rem(within, height), lax.div(within, height)
