"""From an attention call to the kernels that serve it.

A kernel of the op `attention` is a function `(inputs, spec) -> (o_BTNV, lse_BTN)`. It is
differentiable as it stands, or it is wrapped in `ForwardOnly`, and then a kernel of the op
`attention_backward`, a `Backward`, is chosen for the same call on its own.
"""

from typing import Any, cast

import attrs
import jax
from jax import Array

from axcore.errors import KernelError
from axcore.ops.attention_types import AttentionInputs, AttentionSpec
from axcore.ops.attention_vjp import ForwardOnly, attention_from_halves
from axcore.ops.call import Call
from axcore.ops.plan import choose_and_record
from axcore.ops.policy import current_policy

ATTENTION = "attention"
ATTENTION_BACKWARD = "attention_backward"


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

    For `accepts` of attention kernels, which can so ask for `inputs.bias_BNTS is None`.
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
    choice = choose_and_record(call)
    kernel = choice.kernel.fn.resolve()
    if isinstance(kernel, ForwardOnly):
        backward = choose_and_record(attrs.evolve(call, op=ATTENTION_BACKWARD))
        return attention_from_halves(
            inputs, spec, forward=kernel.forward, backward=backward.kernel.fn.resolve()
        )
    pin = current_policy().pins.get(ATTENTION_BACKWARD)
    if pin is not None:
        raise KernelError(
            f"{ATTENTION_BACKWARD} is pinned to {pin}, but {ATTENTION} runs {choice.kernel.name}, "
            "which brings its own gradient.",
            mend=f"remove the pin, or pin {ATTENTION} to a kernel that is forward only",
        )
    outputs: tuple[Array, Array] = kernel(inputs, spec)
    return outputs
