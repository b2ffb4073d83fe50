"""From an attention call to the kernels that serve it.

A kernel of the op `attention` is a function `(inputs, spec) -> (o_BTNV, lse_BTN)`. Where its record
does not say that it is differentiable, a kernel of the op `attention_backward`, a `Backward`, is
chosen for the same call.
"""

from typing import Any, cast

import attrs
import jax
from jax import Array

from axcore.ops.attention.sharding import attention_sharding
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.attention.vjp import attention_custom_vjp
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.kernel_op import KernelOp
from axcore.ops.dispatch.kernel_result import ResultSpec

ATTENTION = "attention"


def _results(inputs: AttentionInputs, spec: AttentionSpec) -> tuple[ResultSpec, ResultSpec]:
    head_BTN, q_BTNH = inputs.q_BTNH.shape[:3], inputs.q_BTNH
    return (
        ResultSpec("o_BTNV", (*head_BTN, inputs.v_BSKV.shape[-1]), q_BTNH.dtype.name),
        ResultSpec("lse_BTN", head_BTN, "float32"),
    )


ATTENTION_OP = KernelOp(
    name=ATTENTION,
    sharding=attention_sharding,
    results=_results,
    custom_vjp=attention_custom_vjp,
)
ATTENTION_BACKWARD = ATTENTION_OP.backward


def attention_call(inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool) -> Call:
    """Return the abstract call that kernels accept or refuse.

    Arrays go by the letters of their fields in lower case, without the shape: `q`, `k`, `v`,
    `q_segments`, `k_segments`, `k_start`, `k_end`, `query_offset`, `bias`, `sinks`,
    `dropout_seeds`.
    Features are the fields of `AttentionSpec`, and `lse`, whether the log-sum-exp is asked for.
    """
    arrays = {_NAMES[field]: array for field, array in inputs._asdict().items()}
    return Call.of(ATTENTION, arrays, {**attrs.asdict(spec), "lse": with_lse})


_NAMES = {field: field.rpartition("_")[0] for field in AttentionInputs._fields}


def attention_parts(call: Call) -> tuple[AttentionInputs, AttentionSpec]:
    """Return what `attention_call` was made of, with `jax.ShapeDtypeStruct`s in place of arrays.

    For `unsupported_reason` of attention kernels, which can so ask for `inputs.bias_BNTS is None`.
    """
    arrays = {
        field: _abstract(call.shape(name), call.dtype(name)) if call.has(name) else None
        for field, name in _NAMES.items()
    }
    choices = {field.name: call.feature(field.name) for field in attrs.fields(AttentionSpec)}
    return AttentionInputs(**cast(Any, arrays)), AttentionSpec(**cast(Any, choices))


def _abstract(shape: tuple[int, ...], dtype: str) -> Any:
    return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype))  # type: ignore[no-untyped-call]


def run_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, with_lse: bool
) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)` by the kernels chosen for the call.

    Raises:
        KernelError: No kernel can serve the call, or a pin cannot be followed.
    """
    call = attention_call(inputs, spec, with_lse=with_lse)
    outputs: tuple[Array, Array] = ATTENTION_OP.run(call, inputs, spec)
    return outputs
