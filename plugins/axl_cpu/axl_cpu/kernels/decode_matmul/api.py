"""Products of rows with a weight, on the host.

Letters: R rows, K input, N output; G groups of K that share a scale in each column; P panels of C
columns; S rows whose sums are in registers together.
"""

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, DecodeMatmulInputs, DecodeMatmulSpec
from axl_cpu.kernels.decode_matmul.program import (
    ColumnSums,
    RowDots,
    columns_at_once,
    rows_at_once,
)
from axl_cpu.llvm.host_call import host_call
from axl_cpu.llvm.processor import this_processor
from axl_cpu.llvm.xla_ffi import interface_problem

WIDE = ("float32", "bfloat16")
MAX_ROWS = 64
"""With more rows than these XLA's products, which lay out the weight first, are faster; but for
weights in panels, which are laid out."""

LANES = 16
"""The longest vectors that there are."""

ROW_PANELS = 2
"""Panels that are read at once for one row: memory gives more to several readers."""

MAX_COLUMNS = 8
"""Vectors of columns: more gain nothing."""

INT4_COLUMNS = 6
"""Of one row in int4: on vectors of 8 numbers, all columns of a panel."""


def unsupported_reason(call: Call) -> str | None:
    """Return why the kernel cannot serve a call, or None."""
    if problem := interface_problem():
        return problem
    rows, depth = call.shape("x")
    weight = call.shape("weight")
    if call.dtype("x") not in WIDE:
        return f"wants x in {' or '.join(WIDE)}, not {call.dtype('x')}"
    if not (rows and depth):
        return "wants an input that is not empty"
    if len(weight) == 3:
        if weight[2] % LANES:
            return f"wants panels of a multiple of {LANES} columns"
        return _groups_problem(call, 1)
    if rows > MAX_ROWS:
        return f"wants at most {MAX_ROWS} rows, not {rows}, of a weight that is not packed"
    if call.feature("transposed"):
        if depth % LANES:
            return f"wants rows of a multiple of {LANES} numbers, not {depth}"
        return None if weight[0] >= MAX_COLUMNS else f"wants {MAX_COLUMNS} outputs or more"
    if weight[1] < LANES:
        return f"wants {LANES} outputs or more, not {weight[1]}"
    return _groups_problem(call, 0)


def _groups_problem(call: Call, dimension: int) -> str | None:
    """Return why groups of scales do not fit: both halves of bytes have as many."""
    if call.dtype("weight") != "uint8":
        return None
    groups = call.shape("scale")[dimension]
    if groups > 1 and groups % 2:
        return f"wants an even number of groups in int4, not {groups}"
    return None


def cpu_decode_matmul(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> Array:
    """Return `y_RN`; see `decode_matmul`."""
    x, weight, scale = inputs
    # x is small, so that it is converted once; the weight is converted in registers, where it costs
    # no memory.
    wide = x.astype(jnp.float32)
    if spec.transposed:
        together, weights = (1, 8) if len(x) == 1 else (4, 4)
        dots = RowDots(rows=len(x), dtype=str(weight.dtype), together=together, weights=weights)
        y = host_call(dots, (wide, weight), _float32(len(x), len(weight)))
        return (y if scale is None else y * scale.T).astype(x.dtype)
    has_groups = scale is not None and scale.shape[-2] > 1
    y = _column_sums(wide, weight, scale if has_groups else None, spec.out_dim)
    if scale is not None and not has_groups:
        # A scale for full columns leaves the sum, and so is multiplied once.
        y = y * scale.reshape(1, -1)[:, : y.shape[1]]
    return y.astype(x.dtype)


def _column_sums(x: Array, weight: Array, scale: Array | None, out_dim: int | None) -> Array:
    """Return `x @ (weight * scale)`, of x in batches of S rows, filled up with zeros."""
    processor = this_processor()
    rows = min(len(x), rows_at_once(processor.num_vectors))
    batches = -(-len(x) // rows)
    padded = jnp.pad(x, ((0, batches * rows - len(x)), (0, 0)))
    width = None if weight.ndim == 2 else weight.shape[2]
    dtype = "int4" if weight.dtype == jnp.uint8 else str(weight.dtype)
    # The halves of bytes have sums of their own.
    sums = rows * 2 if dtype == "int4" else rows
    columns = columns_at_once(sums, processor.num_vectors, MAX_COLUMNS)
    if sums == 2:
        # One more vector than registers hold next to the sums is read again from a cache; panels
        # of which a half is read at a time cost more.
        columns = INT4_COLUMNS
    num_columns = weight.shape[1]
    row_size = num_columns
    if width is None:
        columns = min(columns, num_columns // processor.lanes)
    else:
        num_columns = out_dim or 0
        row_size = -(-num_columns // LANES) * LANES
        columns = max(one for one in range(1, columns + 1) if width % (one * processor.lanes) == 0)
    # Two panels only where each is a strip of its own and nothing but memory is waited for.
    is_whole = sums == 1 and width == columns * processor.lanes and len(weight) >= ROW_PANELS
    panels = ROW_PANELS if is_whole else 1
    kernel = ColumnSums(
        rows=rows,
        dtype=dtype,
        columns=columns * panels,
        panel_width=width,
        panels=panels,
        is_read_once=batches == 1,
        has_groups=scale is not None,
    )
    arrays = (padded.reshape(batches, rows, -1), weight, *(() if scale is None else (scale,)))
    layouts = [(0, 2, 1), *(None for _ in arrays[1:])]
    y = host_call(kernel, arrays, _float32(batches * rows, row_size), layouts=layouts)
    return y[: len(x), :num_columns]


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
