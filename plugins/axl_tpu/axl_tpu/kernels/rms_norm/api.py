"""RMS normalisation on TPU by a Pallas kernel: `x` is read once forward and once backward.

Backward computes the rows' factor again, which costs less than to keep it: a number a row takes
a full register's width of memory. The gradient of the scale is summed over rows in the kernel.

Letters: R rows, D width, C rows of a chunk, S slabs of blocks, each for a core of its own.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from axcore.ops import BlockSizeTable, Call, RmsNormInputs, RmsNormSpec, choose_block_sizes
from axcore.plugins import Hardware

SUBLANES = 8
MAX_WIDTH = 16384
"""Widest row of which a chunk with all that is computed from it fits VMEM."""

DTYPES = ("bfloat16", "float32")


@attrs.frozen
class RmsNormBlockSizes:
    """How rows are cut.

    Args:
        block_rows: Rows that are copied at once, a multiple of `chunk_rows`.
        chunk_rows: Rows that are computed at once, a multiple of 16.
    """

    block_rows: int
    chunk_rows: int


BLOCK_BYTES = 2**21
"""Default bytes of a block of `x` in float32, of which backward holds three, each twice."""


def _default(call: Call, hardware: Hardware) -> RmsNormBlockSizes:
    rows = BLOCK_BYTES // (4 * call.shape("x")[-1])
    # 16 rows are one tile of 16 bits, the least that is loaded whole.
    return RmsNormBlockSizes(block_rows=min(512, max(16, rows // 16 * 16)), chunk_rows=16)


def _candidates(call: Call, hardware: Hardware) -> Iterator[RmsNormBlockSizes]:
    largest = _default(call, hardware).block_rows
    for block_rows in sorted({max(16, largest // parts // 16 * 16) for parts in (1, 2, 4)}):
        yield RmsNormBlockSizes(block_rows=block_rows, chunk_rows=16)


BLOCK_SIZES = BlockSizeTable(
    kernel="rms_norm/tpu_rms_norm",
    package=__package__,
    default=_default,
    candidates=_candidates,
    bucket=lambda call: {"width": call.shape("x")[-1], "dtype": call.dtype("x")},
)


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
    for name in ("x", "scale"):
        if call.has(name) and call.dtype(name) not in DTYPES:
            return f"takes {name} of bfloat16 and float32, not {call.dtype(name)}"
    if 0 in call.shape("x"):
        return f"takes no empty array, not x {call.shape('x')}"
    if call.shape("x")[-1] > MAX_WIDTH:
        return f"takes widths up to {MAX_WIDTH}, not {call.shape('x')[-1]}"
    return None


def tpu_rms_norm(inputs: RmsNormInputs, spec: RmsNormSpec, *, interpret: Any = False) -> Array:
    """Return the normalised `x` in its dtype; all arithmetic is float32.

    Reads `x` and writes the result, once. A last block that reaches past the rows is masked.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    how, x_RD = _How.of(inputs, spec), _rows(inputs.x)
    grid = _Grid.of(x_RD, how.block_sizes)
    y_RD: Array = pl.pallas_call(
        partial(_forward_kernel, how=how),
        out_shape=jax.ShapeDtypeStruct(x_RD.shape, x_RD.dtype),
        grid=grid.shape,
        in_specs=[grid.rows, *grid.row_of(inputs.scale)],
        out_specs=grid.rows,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=interpret,
        name="tpu_rms_norm",
    )(x_RD, *_as_row(inputs.scale))
    return y_RD.reshape(inputs.x.shape)


def tpu_rms_norm_backward(
    inputs: RmsNormInputs, spec: RmsNormSpec, *, dy: Array, interpret: Any = False
) -> RmsNormInputs:
    """Return the gradients; that of the scale is float32.

    Reads `x` and the result's gradient and writes the gradient of `x`, all once.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        dy: The gradient of the result.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    how, x_RD, has_scale = _How.of(inputs, spec), _rows(inputs.x), inputs.scale is not None
    grid = _Grid.of(x_RD, how.block_sizes)
    # Eight rows, one for each sublane: summing them in the kernel would move data between
    # sublanes in every chunk.
    dscale_shape = (grid.shape[0], SUBLANES, x_RD.shape[1])
    dscale_spec = pl.BlockSpec((None, *dscale_shape[1:]), lambda s, i: (s, 0, 0))
    dx_RD, *dscale = pl.pallas_call(
        partial(_backward_kernel, how=how, num_rows=x_RD.shape[0]),
        out_shape=[
            jax.ShapeDtypeStruct(x_RD.shape, x_RD.dtype),
            *[jax.ShapeDtypeStruct(dscale_shape, jnp.float32)] * has_scale,
        ],
        grid=grid.shape,
        in_specs=[grid.rows, grid.rows, *grid.row_of(inputs.scale)],
        out_specs=[grid.rows, *[dscale_spec] * has_scale],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="tpu_rms_norm_backward",
    )(x_RD, _rows(dy), *_as_row(inputs.scale))
    dscale_D = jnp.sum(dscale[0], axis=(0, 1)) if dscale else None
    return RmsNormInputs(dx_RD.reshape(inputs.x.shape), dscale_D)


class _How(NamedTuple):
    block_sizes: RmsNormBlockSizes
    epsilon: float
    scale_offset: float

    @classmethod
    def of(cls, inputs: RmsNormInputs, spec: RmsNormSpec) -> "_How":
        block_sizes = choose_block_sizes(BLOCK_SIZES, Call.of("rms_norm", inputs._asdict(), {}))
        return cls(block_sizes, spec.epsilon, spec.scale_offset)


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


class _Grid(NamedTuple):
    """Slabs by blocks of a slab; which rows a step gets, and how it gets one row of all."""

    shape: tuple[int, int]
    rows: pl.BlockSpec
    row: pl.BlockSpec

    @classmethod
    def of(cls, x_RD: Array, block_sizes: RmsNormBlockSizes) -> "_Grid":
        num_rows, width = x_RD.shape
        size = min(
            block_sizes.block_rows, -(-num_rows // block_sizes.chunk_rows) * block_sizes.chunk_rows
        )
        num_blocks = -(-num_rows // size)
        # Chips with two cores share the slabs out. Each sums a gradient of the scale of its own,
        # as cores cannot add to one block.
        num_slabs = 2 if num_blocks % 2 == 0 else 1
        per_slab = num_blocks // num_slabs
        return cls(
            shape=(num_slabs, per_slab),
            rows=pl.BlockSpec((size, width), lambda s, i: (s * per_slab + i, 0)),
            row=pl.BlockSpec((1, width), lambda s, i: (0, 0)),
        )

    def row_of(self, scale_D: Array | None) -> list[pl.BlockSpec]:
        return [] if scale_D is None else [self.row]


def _as_row(scale_D: Array | None) -> list[Array]:
    return [] if scale_D is None else [scale_D[None, :]]


def _forward_kernel(x_ref: Any, *refs: Any, how: _How) -> None:
    *scale_ref, y_ref = refs
    factor_1D = _scale(scale_ref, how)

    def chunk(rows: Any) -> None:
        x_CD = x_ref[rows, :].astype(jnp.float32)
        y_CD = x_CD * _factor(x_CD, how.epsilon)
        y_ref[rows, :] = _times(y_CD, factor_1D).astype(y_ref.dtype)

    _each_chunk(x_ref.shape[0], how.block_sizes.chunk_rows, chunk)


def _backward_kernel(x_ref: Any, dy_ref: Any, *refs: Any, how: _How, num_rows: int) -> None:
    has_scale = len(refs) > 1
    scale_ref, (dx_ref, *dscale_ref) = refs[:has_scale], refs[has_scale:]
    factor_1D = _scale(scale_ref, how)
    slab, i = pl.program_id(0), pl.program_id(1)
    first_row = (slab * pl.num_programs(1) + i) * x_ref.shape[0]

    @pl.when(i == 0)
    def _() -> None:
        for ref in dscale_ref:
            ref[...] = jnp.zeros(ref.shape, ref.dtype)

    def chunk(rows: Any) -> None:
        x_CD, dy_CD = (ref[rows, :].astype(jnp.float32) for ref in (x_ref, dy_ref))
        row_CD = first_row + rows.start + lax.broadcasted_iota(jnp.int32, x_CD.shape, 0)
        # Rows past the end hold anything, and are summed into the scale's gradient.
        x_CD, dy_CD = (jnp.where(row_CD < num_rows, one, 0.0) for one in (x_CD, dy_CD))
        factor_C1 = _factor(x_CD, how.epsilon)
        normal_CD = x_CD * factor_C1
        gradient_CD = _times(dy_CD, factor_1D)
        along_C1 = jnp.mean(gradient_CD * normal_CD, axis=-1, keepdims=True)
        dx_ref[rows, :] = (factor_C1 * (gradient_CD - normal_CD * along_C1)).astype(dx_ref.dtype)
        for ref in dscale_ref:
            parts = (dy_CD * normal_CD).reshape(-1, *ref.shape)
            ref[...] += jnp.sum(parts, axis=0)

    _each_chunk(x_ref.shape[0], how.block_sizes.chunk_rows, chunk)


def _each_chunk(num_rows: int, chunk_rows: int, work: Any) -> None:
    def step(c: Array, _: None) -> None:
        work(pl.ds(pl.multiple_of(c * chunk_rows, chunk_rows), chunk_rows))

    lax.fori_loop(0, num_rows // chunk_rows, step, None)


def _factor(x_CD: Array, epsilon: float) -> Array:
    return lax.rsqrt(jnp.mean(x_CD * x_CD, axis=-1, keepdims=True) + epsilon)


def _scale(scale_ref: Any, how: _How) -> Array | None:
    return how.scale_offset + scale_ref[0][...].astype(jnp.float32) if scale_ref else None


def _times(x_CD: Array, factor_1D: Array | None) -> Array:
    return x_CD if factor_1D is None else x_CD * factor_1D
