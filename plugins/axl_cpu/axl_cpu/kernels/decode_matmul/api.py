"""Products of a few rows with a weight, on the host.

Letters: R rows, K input, N output; G groups of K that share a scale in each column.
"""

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, DecodeMatmulInputs, DecodeMatmulSpec
from axl_cpu.kernels.decode_matmul.program import ColumnPanels, RowDots, rows_at_once
from axl_cpu.llvm.host_call import HostKernel, host_call
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
    kernel = _kernel(inputs, spec)
    out_dim = weight.shape[0 if spec.transposed else 1]
    arrays = (x.astype(jnp.float32), weight, *(() if scale is None else (scale,)))
    result = jax.ShapeDtypeStruct((len(x), out_dim), jnp.float32)
    return host_call(kernel, arrays, result).astype(x.dtype)


def _kernel(inputs: DecodeMatmulInputs, spec: DecodeMatmulSpec) -> HostKernel:
    x, weight, scale = inputs
    vectors = this_processor().num_vectors
    if spec.transposed:
        # A sum for each pair of rows, the weight's rows, and one of x.
        together = _most(len(x), vectors)
        return RowDots(rows=len(x), dtype=str(weight.dtype), weights=together)
    together = min(_most(len(x), vectors), weight.shape[1] // this_processor().lanes)
    scaling = "none" if scale is None else "columns" if len(scale) == 1 else "groups"
    dtype = "int4" if weight.dtype == jnp.uint8 else str(weight.dtype)
    return ColumnPanels(rows=len(x), dtype=dtype, columns=together, scaling=scaling)


def _most(rows: int, vectors: int) -> int:
    """Return how many vectors of a weight registers hold beside their sums with each row."""
    rows = min(rows, rows_at_once(vectors))
    return max(1, min(MAX_COLUMNS, (vectors - 1) // (rows + 1)))
