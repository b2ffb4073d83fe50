"""Attention of the newest tokens over a cache, on the host.

Letters: as of `DecodeInputs`.
"""

import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops import Call, DecodeInputs, DecodeSpec
from axl_cpu.kernels.decode_attention.program import DecodeAttention
from axl_cpu.llvm.host_call import host_call
from axl_cpu.llvm.xla_ffi import interface_problem

KEPT = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn")
"""What keys and values may be kept in."""

LANES = 16
"""The longest vectors that there are."""

MAX_QUERIES = 16
"""With more queries of a row than these XLA's products are faster."""

MAX_ROOM = 1 << 16
"""Numbers that fit a thread's stack: of each query its sums and a block's products."""


def unsupported_reason(call: Call) -> str | None:
    """Return why the kernel cannot serve a call, or None."""
    if problem := interface_problem():
        return problem
    _, queries, heads, width = call.shape("q")
    value_width = call.shape("v")[3]
    if call.dtype("q") not in KEPT[:2] or call.dtype("k") not in KEPT:
        return (
            f"wants queries in {' or '.join(KEPT[:2])} and keys in one of {', '.join(KEPT)}, not "
            f"{call.dtype('q')} and {call.dtype('k')}"
        )
    if width % LANES or value_width % LANES:
        return f"wants widths that are multiples of {LANES}, not {width} and {value_width}"
    if queries > MAX_QUERIES:
        return f"wants at most {MAX_QUERIES} queries of a row, not {queries}"
    room = queries * heads * (value_width + LANES * LANES + 3 * LANES)
    if room > MAX_ROOM:
        return f"wants queries and heads of a row that take {MAX_ROOM} numbers, not {room}"
    return None if queries and heads else "wants queries"


def cpu_decode_attention(inputs: DecodeInputs, spec: DecodeSpec) -> Array:
    """Return `o_BTNV`; see `decode_attention`."""
    q = inputs.q_BTNH
    kernel = DecodeAttention(
        queries=q.shape[1],
        heads=q.shape[2],
        key_heads=inputs.k.shape[2],
        width=q.shape[3],
        value_width=inputs.v.shape[3],
        page_size=None if inputs.page_table_BP is None else inputs.k.shape[1],
        dtype=str(inputs.k.dtype),
        has_sinks=inputs.sinks_N is not None,
        is_scaled=inputs.key_scale_MCK is not None,
        scale=spec.scale,
        left=spec.left,
        soft_cap=spec.soft_cap,
    )
    given = inputs._replace(
        # Queries are few; keys and values, which are many, are converted in registers.
        q_BTNH=q.astype(jnp.float32),
        lengths_B=inputs.lengths_B.astype(jnp.int32),
        page_table_BP=_cast(inputs.page_table_BP, jnp.int32),
        sinks_N=_cast(inputs.sinks_N, jnp.float32),
    )
    arrays = [array for array in given if array is not None]
    result = jax.ShapeDtypeStruct((*q.shape[:3], inputs.v.shape[3]), jnp.float32)
    return host_call(kernel, arrays, result).astype(q.dtype)


def _cast(array: Array | None, dtype: type) -> Array | None:
    return None if array is None else array.astype(dtype)
