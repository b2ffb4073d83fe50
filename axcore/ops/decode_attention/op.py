"""The decode-attention op: one query or a few of each row against a cache of keys and values.

Letters: B batch rows, T queries of a row, S keys that a row has room for, N query heads, K key
heads, H key width, V value width; M pages of the cache, C keys of a page, P pages of a row.
"""

import math
from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.attention.api import check_numbers
from axcore.ops.attention.op import ATTENTION_OP, AttentionInputs, AttentionSpec
from axcore.ops.dispatch import Call
from axcore.ops.op import KernelOp, ResultSpec
from axcore.parallel.shard_op import OpSharding, axes


class DecodeInputs(NamedTuple):
    """The arrays of one call, a pytree.

    The cache is contiguous, `k [B, S, K, H]` and `v [B, S, K, V]`, or paged where there is a page
    table: `k [M, C, K, H]` and `v [M, C, K, V]`. Where it is kept in fewer bits, each key and value
    has a scale: `[M, C, K]`, or `[B, S, K]`.
    """

    q_BTNH: Array
    k: Array
    v: Array
    lengths_B: Array
    page_table_BP: Array | None = None
    sinks_N: Array | None = None
    key_scale_MCK: Array | None = None
    value_scale_MCK: Array | None = None

    @property
    def capacity(self) -> int:
        """Return S, how many keys a row has room for."""
        keys: int = self.k.shape[1]
        return keys if self.page_table_BP is None else keys * self.page_table_BP.shape[1]


@attrs.frozen(kw_only=True)
class DecodeSpec:
    """The static choices of one call; hashable. `left` bounds how far back a query sees."""

    scale: float
    left: int | None = None
    soft_cap: float | None = None

    def as_attention(self) -> AttentionSpec:
        """Return the choices as those of causal attention."""
        return AttentionSpec(scale=self.scale, left=self.left, right=0, soft_cap=self.soft_cap)


LOW_PRECISION = ("int8", "float8_e4m3fn", "float8_e5m2")
"""Dtypes of keys and values that come with scales."""


def widened(inputs: DecodeInputs) -> DecodeInputs:
    """Return the same call on keys and values of q's dtype, without scales."""
    dtype = inputs.q_BTNH.dtype
    if inputs.key_scale_MCK is None or inputs.value_scale_MCK is None:
        return inputs._replace(k=inputs.k.astype(dtype), v=inputs.v.astype(dtype))
    return inputs._replace(
        k=_wide(inputs.k, inputs.key_scale_MCK).astype(dtype),
        v=_wide(inputs.v, inputs.value_scale_MCK).astype(dtype),
        key_scale_MCK=None,
        value_scale_MCK=None,
    )


def _wide(x: Array, scale: Array) -> Array:
    return x.astype(jnp.float32) * scale[..., None]


def decode_sharding(inputs: DecodeInputs, spec: DecodeSpec) -> OpSharding:
    """Return how a call is split: by rows, and heads of queries as heads of keys.

    A pool of pages belongs to all rows: it is split by heads only.
    """
    rows = "batch" if inputs.page_table_BP is None else None
    queries = axes("batch", None, "kv_heads", None)
    return OpSharding(
        inputs=DecodeInputs(
            q_BTNH=queries,
            k=axes(rows, None, "kv_heads", None),
            v=axes(rows, None, "kv_heads", None),
            lengths_B=axes("batch"),
            page_table_BP=axes("batch", None),
            sinks_N=axes("kv_heads"),
            key_scale_MCK=axes(rows, None, "kv_heads"),
            value_scale_MCK=axes(rows, None, "kv_heads"),
        ),
        outputs=queries,
        split=("batch", "kv_heads"),
    )


def decode_as_attention(
    inputs: DecodeInputs, spec: DecodeSpec
) -> tuple[AttentionInputs, AttentionSpec]:
    """Return the attention call that gives the same; copies a paged cache, and all values.

    Values beyond a row's length are 0: no NaN there is masked by a weight of 0. Keys are as they
    are, and hidden.
    """
    by_row = widened(inputs._replace(**_kept_by_row(inputs)))
    k_BSKH, v_BSKV = by_row.k, by_row.v
    position_S = jnp.arange(inputs.capacity, dtype=jnp.int32)
    is_written_BS = position_S[None, :] < inputs.lengths_B[:, None]
    causal = AttentionInputs(
        q_BTNH=inputs.q_BTNH,
        k_BSKH=k_BSKH,
        v_BSKV=jnp.where(is_written_BS[..., None, None], v_BSKV, 0),
        # The queries are a row's last tokens.
        query_offset_B=inputs.lengths_B - inputs.q_BTNH.shape[1],
        sinks_N=inputs.sinks_N,
    )
    return causal, spec.as_attention()


def attention_call_of(call: Call) -> Call:
    """Return the abstract call of attention that `decode_as_attention` makes of a decode call."""
    inputs, spec = DECODE_ATTENTION_OP.parts(call)
    made: list[Call] = []

    def make(given: DecodeInputs) -> None:
        made.append(ATTENTION_OP.call(*decode_as_attention(given, spec), lse=False))

    # Traced without arrays: the predicate of the kernel behind must see the call that will be
    # made, not an estimate of it.
    jax.eval_shape(make, inputs)
    return made[0]


def _kept_by_row(inputs: DecodeInputs) -> dict[str, Any]:
    """Return what the cache keeps of each row, by the name of the field."""
    names = ("k", "v", "key_scale_MCK", "value_scale_MCK")
    kept = {name: getattr(inputs, name) for name in names}
    table_BP = inputs.page_table_BP
    if table_BP is None:
        return kept
    return {name: jax.tree.map(lambda x: _by_row(x, table_BP), pool) for name, pool in kept.items()}


def _by_row(pool: Array, page_table_BP: Array) -> Array:
    """Return each row's pages one after the other, `[B, S, ...]`."""
    pages = jnp.take(pool, page_table_BP, axis=0, mode="clip")
    return pages.reshape(pages.shape[0], -1, *pool.shape[2:])


def check_decode(inputs: DecodeInputs, spec: DecodeSpec) -> None:
    """Refuse arrays and numbers that do not fit together.

    Raises:
        KernelError: Naming what does not fit.
    """
    check_numbers(
        window=(spec.left, 0),
        scale=spec.scale,
        soft_cap=spec.soft_cap,
        dropout_rate=0.0,
        op="decode_attention",
    )
    q, k, v = inputs.q_BTNH, inputs.k, inputs.v
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise _misfit("expected 4 dimensions each", inputs)
    _check_dtypes(inputs)
    if k.shape[:3] != v.shape[:3]:
        raise _misfit("k and v differ in more than their width", inputs)
    if inputs.page_table_BP is None and k.shape[0] != q.shape[0]:
        raise _misfit("batch sizes differ and there is no page table", inputs)
    if k.shape[0] == 0 or k.shape[1] == 0:
        raise _misfit("the cache has no room for a key", inputs)
    if q.shape[3] != k.shape[3]:
        raise _misfit("q and k have different widths", inputs)
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise _misfit("the query heads are not a multiple of the key heads", inputs)
    _check_parts(inputs)


def _check_dtypes(inputs: DecodeInputs) -> None:
    q, k, v = inputs.q_BTNH.dtype, inputs.k.dtype, inputs.v.dtype
    scales = (inputs.key_scale_MCK, inputs.value_scale_MCK)
    if scales == (None, None):
        are_floating = all(jnp.issubdtype(dtype, jnp.floating) for dtype in (q, k))
        if not (k == v and are_floating and (q == k or k.itemsize == 2)):
            raise KernelError(
                f"decode_attention: dtypes are q {q}, k {k}, v {v}; expected one floating dtype, "
                "or one of 16 bits for k and v.",
                hint="cast k and v to the compute dtype before the call, or give scales",
            )
        return
    if not (k == v and str(k) in LOW_PRECISION):
        raise KernelError(
            f"decode_attention: there are scales, and k is {k}, v {v}; expected one of "
            f"{', '.join(LOW_PRECISION)} for both."
        )
    for scale, x in zip(scales, (inputs.k, inputs.v), strict=True):
        if scale is None or scale.shape != x.shape[:3] or scale.dtype != jnp.float32:
            found = "missing" if scale is None else f"{scale.dtype} of shape {scale.shape}"
            raise KernelError(
                f"decode_attention: scales are {found}; expected float32 {x.shape[:3]}."
            )


def _misfit(what: str, inputs: DecodeInputs) -> KernelError:
    letters = "BSKH" if inputs.page_table_BP is None else "MCKH"
    return KernelError(
        f"decode_attention: {what}: q BTNH {inputs.q_BTNH.shape}, k {letters} {inputs.k.shape}, "
        f"v {inputs.v.shape}."
    )


def _check_parts(inputs: DecodeInputs) -> None:
    batch, _, num_heads, _ = inputs.q_BTNH.shape
    _check_integers("lengths", inputs.lengths_B, "(batch,)", inputs.lengths_B.shape == (batch,))
    table = inputs.page_table_BP
    if table is not None:
        fits = table.ndim == 2 and table.shape[0] == batch and table.shape[1] > 0
        _check_integers("page_table", table, "(batch, pages)", fits)
    sinks = inputs.sinks_N
    if sinks is not None and not (
        sinks.shape == (num_heads,) and jnp.issubdtype(sinks.dtype, jnp.floating)
    ):
        raise KernelError(
            f"decode_attention: sinks are {sinks.dtype} of shape {sinks.shape}; expected floating "
            f"({num_heads},)."
        )


def _check_integers(name: str, array: Array, expected: str, fits: bool) -> None:
    if not fits or not jnp.issubdtype(array.dtype, jnp.integer):
        raise KernelError(
            f"decode_attention: {name} are {array.dtype} of shape {array.shape}; expected integers "
            f"{expected}."
        )


def _results(inputs: DecodeInputs, spec: DecodeSpec) -> ResultSpec:
    q_BTNH = inputs.q_BTNH
    return ResultSpec("o_BTNV", (*q_BTNH.shape[:3], inputs.v.shape[-1]), q_BTNH.dtype.name)


DECODE_ATTENTION_OP = KernelOp[Array](
    name="decode_attention",
    inputs=DecodeInputs,
    spec=DecodeSpec,
    sharding=decode_sharding,
    results=_results,
)


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

    @jax.custom_jvp
    def run(inputs: DecodeInputs) -> Array:
        return DECODE_ATTENTION_OP.run(inputs, spec)

    run.defjvp(_refuse_gradient)
    o_BTNV: Array = run(inputs)
    return o_BTNV


def _refuse_gradient(primals: Any, tangents: Any) -> Any:
    raise KernelError(
        "decode_attention: its gradient is asked for, and it has none.",
        hint="train with attention(..., query_offset=...), which gives the same output",
    )
