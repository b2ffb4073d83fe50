"""The attention op: the arrays of a call, how they are split, its gradient, and its kernels.

A kernel of the op `attention` is a function `(inputs, spec) -> (o_BTNV, lse_BTN)`. Where its record
does not say that it is differentiable, a kernel of the op `attention_backward`, a `Backward`, is
chosen for the same call. What forward leaves for backward is fixed: the output and the log-sum-exp,
by name.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
Query head `n` reads key head `n // (N // K)`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import attrs
import jax
from jax import Array

from axcore.module import named, named_bits
from axcore.ops.op import KernelOp, ResultSpec
from axcore.parallel.shard_op import OpSharding, axes


class AttentionInputs(NamedTuple):
    """The arrays of one call, a pytree. A part that is not used is `None`.

    `q_segments_BT` and `k_segments_BS` come together, as do `k_start_BT` and `k_end_BT`.
    `bias_BNTS` may have size 1 in any dimension. `query_offset_B` is added to the static offset.
    `dropout_seeds_BN`, uint32, are those of `mask.dropout_seeds`.
    """

    q_BTNH: Array
    k_BSKH: Array
    v_BSKV: Array
    q_segments_BT: Array | None = None
    k_segments_BS: Array | None = None
    k_start_BT: Array | None = None
    k_end_BT: Array | None = None
    query_offset_B: Array | None = None
    bias_BNTS: Array | None = None
    sinks_N: Array | None = None
    dropout_seeds_BN: Array | None = None


@attrs.frozen(kw_only=True)
class AttentionSpec:
    """The static choices of one call; hashable.

    `left` and `right` bound the distance `key - query position` to `[-left, right]`; `None` is no
    bound. Causal attention is `right=0`.
    """

    scale: float
    left: int | None = None
    right: int | None = None
    query_offset: int = 0
    soft_cap: float | None = None
    dropout_rate: float = 0.0


HEADS = "kv_heads"
"""Query heads are split as key heads are, or else a device would lack the keys it needs."""


def attention_sharding(inputs: AttentionInputs, spec: AttentionSpec) -> OpSharding:
    """Return how a call is split: kernels see rows and heads split, and time whole.

    Where time is split it is split around them: see `context_parallel_attention`.
    """
    row, head = axes("batch", "time"), axes("batch", "time", HEADS)
    return OpSharding(
        inputs=AttentionInputs(
            q_BTNH=axes(*head, None),
            k_BSKH=axes(*head, None),
            v_BSKV=axes(*head, None),
            q_segments_BT=row,
            k_segments_BS=row,
            k_start_BT=row,
            k_end_BT=row,
            query_offset_B=axes("batch"),
            bias_BNTS=_bias_axes(inputs),
            sinks_N=axes(HEADS),
            dropout_seeds_BN=axes("batch", HEADS),
        ),
        outputs=(axes(*head, None), head),
        backward={
            "o_BTNV": axes(*head, None),
            "lse_BTN": head,
            "do_BTNV": axes(*head, None),
            "dlse_BTN": head,
        },
        split=("batch", HEADS),
    )


def _bias_axes(inputs: AttentionInputs) -> Any:
    """Return the axes of the bias, whose dimensions of size 1 are broadcast."""
    shape = (1, 1, 1, 1) if inputs.bias_BNTS is None else inputs.bias_BNTS.shape
    whole = ("batch", HEADS, "time", None)
    return axes(*(None if n == 1 else axis for n, axis in zip(shape, whole, strict=True)))


ATTENTION_OUT = "attention_out"
ATTENTION_LSE = "attention_lse"


def name_attention_residuals(o_BTNV: Array, lse_BTN: Array) -> tuple[Array, Array]:
    """Return both arrays under their names; not to be differentiated."""
    return _side_by_side(o_BTNV, ATTENTION_OUT), named(lse_BTN, ATTENTION_LSE)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def named_heads(x_BTNH: Array, name: str) -> Array:
    """Return heads under a name, by which they are kept side by side: `[B, T, N * H]`.

    So products make and take them. As heads of their own they would be padded and turned around in
    the memory of accelerators that hold matrices in tiles.
    """
    return _side_by_side(x_BTNH, name)


@named_heads.defjvp
def _named_heads_jvp(
    name: str, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    return _side_by_side(*primals, name), tangents[0]


def _side_by_side(x_BTNH: Array, name: str) -> Array:
    """Return heads under a name that a policy can see: within no call of a function."""
    batch, time, heads, width = x_BTNH.shape
    return named_bits(x_BTNH.reshape(batch, time, heads * width), name).reshape(x_BTNH.shape)


Forward = Callable[[AttentionInputs, AttentionSpec], tuple[Array, Array]]


@runtime_checkable
class Backward(Protocol):
    """A backward kernel: gradients of a call's arrays, None for parts that carry none."""

    def __call__(
        self,
        inputs: AttentionInputs,
        spec: AttentionSpec,
        *,
        o_BTNV: Array,
        lse_BTN: Array,
        do_BTNV: Array,
        dlse_BTN: Array,
    ) -> AttentionInputs:
        """Return the gradients, given those of the output and of the log-sum-exp."""
        ...


_Residuals = tuple[AttentionInputs, Array, Array]


def attention_custom_vjp(
    inputs: AttentionInputs, spec: AttentionSpec, *, forward: Forward, backward: Backward
) -> tuple[Array, Array]:
    """Return `forward(inputs, spec)`, whose gradient is `backward`."""

    @jax.custom_vjp
    def run(inputs: AttentionInputs) -> tuple[Array, Array]:
        return forward(inputs, spec)

    def run_forward(inputs: AttentionInputs) -> tuple[tuple[Array, Array], _Residuals]:
        # Named here and not outside: of what is outside of the rule, remat keeps a copy that no
        # residual refers to, and runs the kernel again.
        o_BTNV, lse_BTN = name_attention_residuals(*forward(inputs, spec))
        return (o_BTNV, lse_BTN), (inputs, o_BTNV, lse_BTN)

    def run_backward(
        residuals: _Residuals, gradients: tuple[Array, Array]
    ) -> tuple[AttentionInputs]:
        inputs, o_BTNV, lse_BTN = residuals
        do_BTNV, dlse_BTN = gradients
        return (
            backward(
                inputs, spec, o_BTNV=o_BTNV, lse_BTN=lse_BTN, do_BTNV=do_BTNV, dlse_BTN=dlse_BTN
            ),
        )

    run.defvjp(run_forward, run_backward)
    outputs: tuple[Array, Array] = run(inputs)
    return outputs


def _results(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[ResultSpec, ResultSpec]:
    head_BTN, q_BTNH = inputs.q_BTNH.shape[:3], inputs.q_BTNH
    return (
        ResultSpec("o_BTNV", (*head_BTN, inputs.v_BSKV.shape[-1]), q_BTNH.dtype.name),
        ResultSpec("lse_BTN", head_BTN, "float32"),
    )


ATTENTION_OP = KernelOp[tuple[Array, Array]](
    name="attention",
    inputs=AttentionInputs,
    spec=AttentionSpec,
    sharding=attention_sharding,
    results=_results,
    custom_vjp=attention_custom_vjp,
)
