"""Products of a few rows with a weight, on the host.

Letters: R rows, K input, N output; G groups of K that share a scale in each column.
"""

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, DecodeMatmulInputs, DecodeMatmulSpec
from axl_cpu.kernels.decode_matmul.program import (
    CHUNKS,
    ColumnPanels,
    RowChunks,
    RowDots,
    rows_at_once,
)
from axl_cpu.llvm.host_call import host_call
from axl_cpu.llvm.processor import this_processor

WIDE = ("float32", "bfloat16")
MAX_ROWS = 64
"""With more rows than these XLA's products, which lay out the weight first, are faster."""

LANES = 16
"""The longest vectors that there are."""

MAX_COLUMNS = 8
"""Vectors of columns in a panel: more gain nothing."""


def unsupported_reason(call: Call) -> str | None:
    """Returns why the kernel cannot serve a call, or None."""
    rows, depth = call.shape("x")
    if call.dtype("x") not in WIDE:
        return f"wants x in {' or '.join(WIDE)}, not {call.dtype('x')}"
    if not 1 <= rows <= MAX_ROWS:
        return f"wants 1 to {MAX_ROWS} rows, not {rows}"
    if call.feature("transposed"):
        if depth % LANES:
            return f"wants rows of a multiple of {LANES} numbers, not {depth}"
        if call.shape("weight")[0] < MAX_COLUMNS:
            return f"wants {MAX_COLUMNS} outputs or more, not {call.shape('weight')[0]}"
        return None
    if call.shape("weight")[1] < LANES:
        return f"wants {LANES} outputs or more, not {call.shape('weight')[1]}"
    if call.dtype("weight") == "uint8" and (groups := call.shape("scale")[0]) > 1 and groups % 2:
        return f"wants an even number of groups in int4, not {groups}"
    return None if depth else "wants an input that is not empty"


def cpu_decode_matmul(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> Array:
    """Return `y_RN`; see `decode_matmul`."""
    x, weight, scale = inputs
    rows, vectors = len(x), this_processor().num_vectors
    together = _most(rows, vectors)
    wide = x.astype(jnp.float32)
    if spec.transposed:
        dots = RowDots(rows=rows, dtype=str(weight.dtype), weights=together)
        return host_call(dots, (wide, weight), _float32(rows, len(weight))).astype(x.dtype)
    num_columns = weight.shape[1]
    has_groups = scale is not None and len(scale) > 1
    form = RowChunks if rows == 1 else ColumnPanels
    kernel = form(
        rows=rows,
        dtype="int4" if weight.dtype == jnp.uint8 else str(weight.dtype),
        columns=min(together, num_columns // this_processor().lanes),
        has_groups=has_groups,
    )
    arrays = (wide, weight, scale) if has_groups else (wide, weight)
    if rows == 1:
        chunks = host_call(kernel, arrays, _float32(CHUNKS, num_columns))
        y = jnp.sum(chunks, axis=0, keepdims=True)
    else:
        y = host_call(kernel, arrays, _float32(rows, num_columns), transposed=(0,))
    if scale is not None and not has_groups:
        y = y * scale
    return y.astype(x.dtype)


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _most(rows: int, vectors: int) -> int:
    """Return how many vectors of a weight registers hold beside their sums with each row."""
    rows = min(rows, rows_at_once(vectors))
    return max(1, min(MAX_COLUMNS, (vectors - 1) // (rows + 1)))
