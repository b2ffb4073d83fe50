"""Attention as layers call it: `attention`, checks of arguments, and time split over devices.

A device holds some of the queries, and needs keys and values that others hold. `all_gather` brings
them all to every device; `ring` passes them round, a part at a time, so that none ever holds all;
`ulysses` redistributes arrays, so that each device has full rows of a part of the heads. All give
the same numbers: positions, windows, segments and key ranges mean what they mean on one device.

Kernels never show here: see `kernels.py` for the meaning and what runs where nothing better is
installed.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError, ShardingError
from axcore.ops.attention.mask import dropout_seeds
from axcore.ops.attention.op import (
    ATTENTION_OP,
    HEADS,
    AttentionInputs,
    AttentionSpec,
    attention_sharding,
)
from axcore.ops.attention.ring import check_ring, ring_attention
from axcore.parallel.activations import ContextParallelism, context_parallelism
from axcore.parallel.shard_op import Partition


def check_inputs(inputs: AttentionInputs) -> None:
    """Refuse arrays whose ranks, sizes or dtypes do not fit together.

    Raises:
        KernelError: Naming what does not fit.
    """
    q, k, v = inputs.q_BTNH, inputs.k_BSKH, inputs.v_BSKV
    for name, array, letters in (("q", q, "BTNH"), ("k", k, "BSKH"), ("v", v, "BSKV")):
        if array.ndim != 4:
            raise KernelError(
                f"attention: {name} has shape {array.shape}; expected 4 dimensions {letters}."
            )
    if not (q.dtype == k.dtype == v.dtype and jnp.issubdtype(q.dtype, jnp.floating)):
        raise KernelError(
            f"attention: dtypes are q {q.dtype}, k {k.dtype}, v {v.dtype}; expected one floating "
            "dtype.",
            hint="cast q, k and v to the compute dtype before the call",
        )
    if not (q.shape[0] == k.shape[0] == v.shape[0]):
        raise _misfit("batch sizes differ", inputs)
    if k.shape[1] != v.shape[1]:
        raise _misfit("k and v have different numbers of keys", inputs)
    if k.shape[2] != v.shape[2]:
        raise _misfit("k and v have different numbers of heads", inputs)
    if q.shape[3] != k.shape[3]:
        raise _misfit("q and k have different widths", inputs)
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise _misfit("the query heads are not a multiple of the key heads", inputs)
    _check_parts(inputs)


def _misfit(what: str, inputs: AttentionInputs) -> KernelError:
    return KernelError(
        f"attention: {what}: q BTNH {inputs.q_BTNH.shape}, k BSKH {inputs.k_BSKH.shape}, "
        f"v BSKV {inputs.v_BSKV.shape}."
    )


def _check_parts(inputs: AttentionInputs) -> None:
    batch, num_queries, num_heads, _ = inputs.q_BTNH.shape
    num_keys = inputs.k_BSKH.shape[1]
    expected_shapes = (
        ("query segment_ids", inputs.q_segments_BT, (batch, num_queries)),
        ("key segment_ids", inputs.k_segments_BS, (batch, num_keys)),
        ("key_ranges start", inputs.k_start_BT, (batch, num_queries)),
        ("key_ranges end", inputs.k_end_BT, (batch, num_queries)),
        ("query_offset", inputs.query_offset_B, (batch,)),
    )
    for name, array, shape in expected_shapes:
        if array is not None:
            _check_part(name, array, shape, "integer")
    if inputs.sinks_N is not None:
        _check_part("sinks", inputs.sinks_N, (num_heads,), "floating")
    if inputs.bias_BNTS is not None:
        _check_bias(inputs.bias_BNTS, (batch, num_heads, num_queries, num_keys))


def _check_part(name: str, array: Array, shape: tuple[int, ...], kind: str) -> None:
    if array.shape != shape:
        raise KernelError(f"attention: {name} has shape {array.shape}; expected {shape}.")
    if not jnp.issubdtype(array.dtype, getattr(jnp, kind)):
        raise KernelError(f"attention: {name} has dtype {array.dtype}; expected {kind}.")


def _check_bias(bias_BNTS: Array, full: tuple[int, int, int, int]) -> None:
    fits = bias_BNTS.ndim == 4 and all(
        size in (1, whole) for size, whole in zip(bias_BNTS.shape, full, strict=True)
    )
    if not fits:
        raise KernelError(
            f"attention: bias has shape {bias_BNTS.shape}; expected BNTS {full} or 1 in place of "
            "any of them."
        )
    if not jnp.issubdtype(bias_BNTS.dtype, jnp.floating):
        raise KernelError(f"attention: bias has dtype {bias_BNTS.dtype}; expected floating.")


def check_numbers(
    *,
    window: tuple[int | None, int | None] | None,
    scale: float,
    soft_cap: float | None,
    dropout_rate: float,
    op: str = "attention",
) -> None:
    """Refuse static numbers out of range.

    Raises:
        KernelError: Naming the number.
    """
    for side in window or ():
        if side is not None and side < 0:
            raise KernelError(f"{op}: window is {window}; expected sizes >= 0 or None.")
    if not math.isfinite(scale):
        raise KernelError(f"{op}: scale is {scale}; expected a finite number.")
    if soft_cap is not None and not (math.isfinite(soft_cap) and soft_cap > 0):
        raise KernelError(f"{op}: soft_cap is {soft_cap}; expected a positive number.")
    if not 0.0 <= dropout_rate < 1.0:
        raise KernelError(f"{op}: dropout_rate is {dropout_rate}; expected 0 <= rate < 1.")


Window = tuple[int | None, int | None]


@overload
def attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKV: Array,
    *,
    causal: bool = ...,
    window: Window | None = ...,
    segment_ids: Array | tuple[Array, Array] | None = ...,
    key_ranges: tuple[Array, Array] | None = ...,
    query_offset: int | Array = ...,
    scale: float | None = ...,
    soft_cap: float | None = ...,
    bias_BNTS: Array | None = ...,
    sinks_N: Array | None = ...,
    dropout_rate: float = ...,
    dropout_seed: Array | None = ...,
    return_lse: Literal[False] = ...,
) -> Array: ...


@overload
def attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKV: Array,
    *,
    causal: bool = ...,
    window: Window | None = ...,
    segment_ids: Array | tuple[Array, Array] | None = ...,
    key_ranges: tuple[Array, Array] | None = ...,
    query_offset: int | Array = ...,
    scale: float | None = ...,
    soft_cap: float | None = ...,
    bias_BNTS: Array | None = ...,
    sinks_N: Array | None = ...,
    dropout_rate: float = ...,
    dropout_seed: Array | None = ...,
    return_lse: Literal[True],
) -> tuple[Array, Array]: ...


def attention(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKV: Array,
    *,
    causal: bool = False,
    window: Window | None = None,
    segment_ids: Array | tuple[Array, Array] | None = None,
    key_ranges: tuple[Array, Array] | None = None,
    query_offset: int | Array = 0,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias_BNTS: Array | None = None,
    sinks_N: Array | None = None,
    dropout_rate: float = 0.0,
    dropout_seed: Array | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Return `o_BTNV = softmax(logits) v`, in q's dtype; accumulates in float32.

    `logits = cap(scale * q k) + bias` where the key is visible and -inf elsewhere. Query `t` is
    at place `p = query_offset + t` of the key axis. A key must pass every condition given. A query
    that sees no key gives zeros, with zero gradients; one with a logit of +inf gives NaN, and no
    other query does. Query head `n` reads key head `n // (N // K)`.

    Args:
        q_BTNH: Queries.
        k_BSKH: Keys, of q's dtype; `N` is a multiple of `K`.
        v_BSKV: Values, of q's dtype; `V` may differ from `H`.
        causal: Keys at or before `p`.
        window: `(left, right)`: keys in `[p - left, p + right]`; `None` is unbounded.
        segment_ids: Integers `[B, T]` when `T == S`, or a pair `[B, T]`, `[B, S]`: keys of the
            query's own segment. Segment 0 is padding, which sees nothing and is not seen.
        key_ranges: Integers `(start, end)`, each `[B, T]`: keys in `[start, end)` of each query.
        query_offset: Static, or an integer array of shape `[]` or `[B]`. Static offsets let
            kernels skip what causality and window hide.
        scale: Factor on the products; `1 / sqrt(H)` by default.
        soft_cap: `cap(x) = soft_cap * tanh(x / soft_cap)`.
        bias_BNTS: Added to the logits; any dimension may be 1. -inf hides.
        sinks_N: One more logit per head that takes probability and gives no value.
        dropout_rate: Chance to drop each probability; the kept are scaled by `1 / (1 - rate)`.
        dropout_seed: Unsigned scalar, needed with `dropout_rate`. Equal seeds drop equal entries
            in every kernel.
        return_lse: Return `(o_BTNV, lse_BTN)` with the float32 log-sum-exp of each row's logits
            and sink; -inf for a row that sees nothing.

    Raises:
        KernelError: Shapes, dtypes or numbers do not fit, or no kernel can serve the call.
    """
    resolved_scale = 1.0 / math.sqrt(q_BTNH.shape[-1]) if scale is None else float(scale)
    check_numbers(window=window, scale=resolved_scale, soft_cap=soft_cap, dropout_rate=dropout_rate)
    left, right = window or (None, None)
    spec = AttentionSpec(
        scale=resolved_scale,
        left=left,
        right=0 if causal else right,
        # A number stays out of the trace, by which kernels leave out what it hides.
        query_offset=query_offset if isinstance(query_offset, int) else 0,
        soft_cap=soft_cap,
        dropout_rate=float(dropout_rate),
    )
    q_segments, k_segments = _segments(segment_ids)
    k_start, k_end = key_ranges or (None, None)
    inputs = AttentionInputs(
        q_BTNH=q_BTNH,
        k_BSKH=k_BSKH,
        v_BSKV=v_BSKV,
        q_segments_BT=q_segments,
        k_segments_BS=k_segments,
        k_start_BT=k_start,
        k_end_BT=k_end,
        query_offset_B=_offset(query_offset, q_BTNH.shape[0]),
        bias_BNTS=bias_BNTS,
        sinks_N=sinks_N,
    )
    check_inputs(inputs)
    if dropout_rate:
        inputs = inputs._replace(dropout_seeds_BN=_seeds(q_BTNH, dropout_rate, dropout_seed))
    o_BTNV, lse_BTN = context_parallel_attention(inputs, spec, with_lse=return_lse)
    return (o_BTNV, lse_BTN) if return_lse else o_BTNV


def _segments(
    segment_ids: Array | tuple[Array, Array] | None,
) -> tuple[Array | None, Array | None]:
    if segment_ids is None:
        return None, None
    if isinstance(segment_ids, tuple):
        return segment_ids
    # The same object twice: kernels ask by identity whether each query has its own key among
    # them.
    return segment_ids, segment_ids


def _offset(query_offset: int | Array, batch: int) -> Array | None:
    if isinstance(query_offset, int):
        return None
    if query_offset.ndim == 0:
        return jnp.broadcast_to(query_offset, (batch,))
    return query_offset


def _seeds(q_BTNH: Array, dropout_rate: float, dropout_seed: Array | None) -> Array:
    if dropout_seed is None:
        raise KernelError(
            f"attention: dropout_rate is {dropout_rate} and there is no dropout_seed.",
            hint="pass dropout_seed=jax.random.bits(key)",
        )
    return dropout_seeds(dropout_seed, q_BTNH.shape[0], q_BTNH.shape[2])


Outputs = tuple[Array, Array]


@attrs.frozen(eq=False)
class _WholeCall:
    """A call whose time is split, and how all of it is."""

    inputs: AttentionInputs
    spec: AttentionSpec
    with_lse: bool
    partition: Partition

    @classmethod
    def of(cls, inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool) -> "_WholeCall":
        declared = attention_sharding(inputs, spec)
        split = ("batch", "time", HEADS)
        return cls(inputs, spec, with_lse, Partition.of(split, inputs, declared.inputs))

    def in_parts(self, attend: Callable[[AttentionInputs], Outputs]) -> Outputs:
        """Return the outputs of `attend`, which every device calls with its own part."""
        declared = attention_sharding(self.inputs, self.spec)
        in_specs = (self.partition.specs(self.inputs, declared.inputs),)
        outputs: Outputs = self.partition.run(attend, in_specs, self.output_specs())(self.inputs)
        return outputs

    def output_specs(self) -> tuple[Any, Any]:
        """Return how the output and the log-sum-exp are split."""
        o_BTNV, lse_BTN = attention_sharding(self.inputs, self.spec).outputs
        return self.partition.spec(o_BTNV), self.partition.spec(lse_BTN)


def context_parallel_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
) -> Outputs:
    """Return `(o_BTNV, lse_BTN)`, in the form that the sharding in force names.

    A call whose time is whole, or does not divide, is left to its kernels, and so is one with
    dropout, which is counted by places in full arrays.

    Raises:
        ShardingError: The call cannot be run in that form.
        KernelError: No kernel can serve what each device has to compute.
    """
    form = context_parallelism()
    # Places of a part begin at 0, so that each would drop the entries of the first one.
    if form is not None and inputs.dropout_seeds_BN is None:
        call = _WholeCall.of(inputs, spec, with_lse=with_lse)
        if call.partition.axes["time"]:
            return _FORMS[form](call)
    return ATTENTION_OP.run(inputs, spec, lse=with_lse)


def _all_gather(call: _WholeCall) -> Outputs:
    def on_device(part: AttentionInputs) -> Outputs:
        first_query = jnp.asarray(call.partition.index("time")) * part.q_BTNH.shape[1]
        # The place of a device's queries is known at run time only: one program runs on all
        # devices.
        offset_B = jnp.broadcast_to(first_query.astype(jnp.int32), part.q_BTNH.shape[:1])
        if part.query_offset_B is not None:
            offset_B = offset_B + part.query_offset_B.astype(jnp.int32)
        keys = (part.k_BSKH, part.v_BSKV, part.k_segments_BS)
        k, v, k_segments = (_gathered(x, call.partition.axes["time"]) for x in keys)
        whole = part._replace(k_BSKH=k, v_BSKV=v, k_segments_BS=k_segments, query_offset_B=offset_B)
        return ATTENTION_OP.run(whole, call.spec, lse=call.with_lse)

    return call.in_parts(on_device)


def _gathered(x: Any, names: tuple[str, ...]) -> Any:
    return None if x is None else jax.lax.all_gather(x, names, axis=1, tiled=True)


def _ring(call: _WholeCall) -> Outputs:
    check_ring(call.inputs, call.spec)
    names, num_parts = call.partition.axes["time"], call.partition.ways("time")
    return call.in_parts(lambda part: ring_attention(part, call.spec, names, num_parts))


def _ulysses(call: _WholeCall) -> Outputs:
    partition, num_heads = call.partition, call.inputs.k_BSKH.shape[2]
    names = (*partition.axes[HEADS], *partition.axes["time"])
    by_heads = attrs.evolve(partition, axes={**partition.axes, "time": (), HEADS: names})
    assert partition.mesh is not None
    # Key heads, as a device with a query head needs its keys.
    if num_heads % by_heads.ways(HEADS):
        raise ShardingError(
            f"attention with {num_heads} key heads cannot be split by heads over "
            f"{' x '.join(f'{name} {partition.mesh.shape[name]}' for name in names)}",
            where="sharding.context_parallelism",
            hint="--set sharding.context_parallelism=all_gather, or ring",
        )

    def on_device(part: AttentionInputs) -> Outputs:
        return ATTENTION_OP.run(part, call.spec, lse=call.with_lse)

    o_BTNV, lse_BTN = attrs.evolve(call, partition=by_heads).in_parts(on_device)
    back_BTNV, back_BTN = (
        jax.sharding.NamedSharding(partition.mesh, spec) for spec in call.output_specs()
    )
    return (
        # Without it the compiler may leave heads split, and exchange arrays later, at a worse
        # place.
        jax.lax.with_sharding_constraint(o_BTNV, back_BTNV),  # type: ignore[no-untyped-call]
        jax.lax.with_sharding_constraint(lse_BTN, back_BTN),  # type: ignore[no-untyped-call]
    )


_FORMS: Mapping[ContextParallelism, Callable[[_WholeCall], Outputs]] = {
    "all_gather": _all_gather,
    "ring": _ring,
    "ulysses": _ulysses,
}
