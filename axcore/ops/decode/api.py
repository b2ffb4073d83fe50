"""The decode-attention op: one query or a few of each row against a cache of keys and values.

Letters: B batch rows, T queries of a row, S keys that a row has room for, N query heads, K key
heads, H key width, V value width; M pages of the cache, C keys of a page, P pages of a row.
"""

import math
from typing import Any

import attrs
import jax
from jax import Array

from axcore.errors import KernelError
from axcore.ops.decode.checks import check_decode
from axcore.ops.decode.sharding import decode_sharding
from axcore.ops.decode.types import DecodeInputs, DecodeSpec
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.kernel_op import KernelOp
from axcore.ops.dispatch.kernel_result import ResultSpec

DECODE_ATTENTION = "decode_attention"


def _results(inputs: DecodeInputs, spec: DecodeSpec) -> ResultSpec:
    q_BTNH = inputs.q_BTNH
    return ResultSpec("o_BTNV", (*q_BTNH.shape[:3], inputs.v.shape[-1]), q_BTNH.dtype.name)


DECODE_ATTENTION_OP = KernelOp(name=DECODE_ATTENTION, sharding=decode_sharding, results=_results)


def decode_attention(
    q_BTNH: Array,
    k: Array,
    v: Array,
    lengths_B: Array,
    *,
    page_table_BP: Array | None = None,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks_N: Array | None = None,
    scales: tuple[Array, Array] | None = None,
) -> Array:
    """Return `o_BTNV`, the queries' causal attention over their row's keys, in q's dtype.

    A row's cache holds `lengths_B` tokens, those of the queries included: query `t` is at
    `p = lengths_B - T + t` and sees the keys in `[p - window, p]`. What the cache holds beyond a
    row's length changes nothing, NaN neither. A query that sees no key gives zeros. The result is
    that of `attention` on the same tokens; accumulates in float32. It has no gradient.

    Args:
        q_BTNH: Queries of the newest tokens.
        k: Keys of q's dtype, or of a floating one of 16 bits: `[B, S, K, H]`, or `[M, C, K, H]`
            with a page table. `N` is a multiple of `K`.
        v: Values of k's dtype, likewise; `V` may differ from `H`.
        lengths_B: Integers in [0, S].
        page_table_BP: Integers: which pages of the cache hold a row's keys, in their order; so a
            row has room for `S = P C` keys. Pages beyond a row's length may be any number.
        window: How many keys before its own a query sees; None is unbounded.
        scale: Factor on the products; `1 / sqrt(H)` by default.
        soft_cap: `cap(x) = soft_cap * tanh(x / soft_cap)`.
        sinks_N: One more logit per head that takes probability and gives no value.
        scales: Where k and v are int8 or float8, what each head of each key, and of each value, is
            to be multiplied by: float32 `[B, S, K]`, or `[M, C, K]`.

    Raises:
        KernelError: Shapes, dtypes or numbers do not fit, no kernel can serve the call, or its
            gradient is asked for.
    """
    inputs = DecodeInputs(q_BTNH, k, v, lengths_B, page_table_BP, sinks_N, *(scales or ()))
    spec = DecodeSpec(
        scale=1.0 / math.sqrt(q_BTNH.shape[-1]) if scale is None else float(scale),
        left=window,
        soft_cap=soft_cap,
    )
    check_decode(inputs, spec)
    call = decode_call(inputs, spec)

    @jax.custom_jvp
    def run(inputs: DecodeInputs) -> Array:
        o_BTNV: Array = DECODE_ATTENTION_OP.run(call, inputs, spec)
        return o_BTNV

    run.defjvp(_refuse_gradient)
    o_BTNV: Array = run(inputs)
    return o_BTNV


def decode_call(inputs: DecodeInputs, spec: DecodeSpec) -> Call:
    """Return the call that kernels are asked about.

    Arrays are `q`, `k`, `v`, `lengths`, and where given `page_table`, `sinks`, `key_scale` and
    `value_scale`; features are the fields of `DecodeSpec`.
    """
    arrays = {
        name if name in ("k", "v") else name.rpartition("_")[0]: array
        for name, array in inputs._asdict().items()
    }
    return Call.of(DECODE_ATTENTION, arrays, attrs.asdict(spec))


def _refuse_gradient(primals: Any, tangents: Any) -> Any:
    raise KernelError(
        "decode_attention: its gradient is asked for, and it has none.",
        hint="train with attention(..., query_offset=...), which gives the same output",
    )
