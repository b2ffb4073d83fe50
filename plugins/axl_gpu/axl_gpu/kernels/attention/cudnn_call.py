"""cuDNN's flash attention: the custom calls of forward and backward, and both as one op.

XLA knows the calls by name and builds a cuDNN graph of each when it compiles, for the GPU that it
compiles for: nothing here asks a live device. `flash` is differentiable, and what both forms of it,
masked and packed, share. What forward leaves for backward is named, so that remat can save it.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width, M
documents of a row, P pairs of them and rows (B M).

Source: XLA, `xla/service/gpu/backend_configs.proto` (CudnnfMHABackendConfig).
"""

import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.module import named
from axcore.ops import ATTENTION_LSE, ATTENTION_OUT

Mask = Literal["NO_MASK", "CAUSAL", "PADDING", "PADDING_CAUSAL"]

FORWARD = {False: "__cudnn$fmhaSoftmax", True: "__cudnn$fmhaScaleBiasSoftmax"}
BACKWARD = {False: "__cudnn$fmhaSoftmaxBackward", True: "__cudnn$fmhaScaleBiasSoftmaxBackward"}
"""Names by whether there is a bias."""

DTYPES = {"bfloat16": "BF16", "float16": "F16"}
_HEADS_OUTSIDE = (0, 2, 1, 3)
"""Order in memory of results that are named `[B, N, T, H]`: as `[B, T, N, H]`."""

_STATUS_RETURNING = 2


class FlashArrays(NamedTuple):
    """The arrays of a call; those that it lacks are None.

    Lengths and offsets come together. Documents come first, in the order of the rows; those that
    a row lacks have length 0. Offsets count elements from the start of the array.
    """

    q_BTNH: Array
    k_BSKH: Array
    v_BSKV: Array
    bias_B1TS: Array | None = None
    q_lengths_P: Array | None = None
    k_lengths_P: Array | None = None
    q_offsets: Array | None = None
    k_offsets: Array | None = None


@attrs.frozen(kw_only=True)
class FlashSpec:
    """The static choices of a call.

    Args:
        scale: Factor on the products.
        mask: What is hidden in addition to the bias; PADDING is all outside of a document.
        window: How many keys a query sees up to its own place; 0 for all.
        num_documents: At most so many in a row.
    """

    scale: float
    mask: Mask
    window: int = 0
    num_documents: int = 1


def flash_forward(arrays: FlashArrays, spec: FlashSpec) -> tuple[Array, Array]:
    """Return the output `[B, T, N, V]` and the float32 log-sum-exp `[B M, N, T]`."""
    q_BTNH, _, v_BSKV, bias, *documents = arrays
    batch, num_queries, num_heads, _ = q_BTNH.shape
    o_BNTV, lse_PNT = _call(
        FORWARD[bias is not None],
        (*arrays[:3], bias, *documents),
        results=(
            (batch, num_heads, num_queries, v_BSKV.shape[-1]),
            (batch * spec.num_documents, num_heads, num_queries),
        ),
        config=_config(arrays, spec, _FORWARD_PRODUCTS),
    )
    return jnp.swapaxes(o_BNTV, 1, 2), lse_PNT


def flash_backward(
    arrays: FlashArrays, spec: FlashSpec, *, o_BTNV: Array, lse_PNT: Array, do_BTNV: Array
) -> tuple[Array, Array, Array]:
    """Return the gradients of queries, keys and values."""
    q_BTNH, k_BSKH, v_BSKV, bias, *documents = arrays
    shapes = [_heads_first(x) for x in (q_BTNH, k_BSKH, v_BSKV)]
    dq_BNTH, dk_BKSH, dv_BKSV = _call(
        BACKWARD[bias is not None],
        (q_BTNH, k_BSKH, v_BSKV, lse_PNT, do_BTNV, bias, o_BTNV, *documents),
        results=tuple(shapes),
        config=_config(arrays, spec, _BACKWARD_PRODUCTS),
    )
    return jnp.swapaxes(dq_BNTH, 1, 2), jnp.swapaxes(dk_BKSH, 1, 2), jnp.swapaxes(dv_BKSV, 1, 2)


def _heads_first(x: Array) -> tuple[int, ...]:
    batch, time, heads, width = x.shape
    return (batch, heads, time, width)


def _call(
    name: str,
    operands: tuple[Array | None, ...],
    *,
    results: tuple[tuple[int, ...], ...],
    config: str,
) -> tuple[Array, ...]:
    """Return the results of a custom call, less its workspace.

    Results of four dimensions have the operands' dtype and heads outside of tokens; others are
    float32.
    """
    given = [x for x in operands if x is not None]
    dtype = given[0].dtype
    shapes = [jax.ShapeDtypeStruct(s, dtype if len(s) == 4 else jnp.float32) for s in results]
    layouts = [_HEADS_OUTSIDE if len(s) == 4 else tuple(range(len(s))) for s in results]
    # The empty uint8 result is the workspace: XLA gives it the size that cuDNN's plan asks for
    # when it compiles. The layouts say that results have heads inside of tokens, as operands do,
    # so that no copy is made on either side.
    run = jax.ffi.ffi_call(
        name,
        [*shapes, jax.ShapeDtypeStruct((0,), jnp.uint8)],
        output_layouts=[*layouts, (0,)],
        vmap_method="sequential",
        custom_call_api_version=_STATUS_RETURNING,
        legacy_backend_config=config,
    )
    return tuple(run(*given))[:-1]


def _matmul(lhs: int, rhs: int, lhs_heads: int, rhs_heads: int) -> dict[str, list[str]]:
    """Return the dimension numbers of a product over rows and heads."""
    return {
        "lhs_contracting_dimensions": [str(lhs)],
        "rhs_contracting_dimensions": [str(rhs)],
        "lhs_batch_dimensions": ["0", str(lhs_heads)],
        "rhs_batch_dimensions": ["0", str(rhs_heads)],
    }


_FORWARD_PRODUCTS = {
    "bmm1_dot_dimension_numbers": _matmul(3, 3, 2, 2),
    "bmm2_dot_dimension_numbers": _matmul(3, 1, 1, 2),
}
_BACKWARD_PRODUCTS = {
    "bmm1_grad_gemm1_dot_dimension_numbers": _matmul(2, 1, 1, 2),
    "bmm1_grad_gemm2_dot_dimension_numbers": _matmul(3, 1, 1, 2),
    "bmm2_grad_gemm1_dot_dimension_numbers": _matmul(2, 1, 1, 2),
    "bmm2_grad_gemm2_dot_dimension_numbers": _matmul(3, 3, 2, 2),
}


def _config(arrays: FlashArrays, spec: FlashSpec, products: dict[str, Any]) -> str:
    """Return XLA's description of the call as JSON."""
    batch, num_queries, num_heads, _ = arrays.q_BTNH.shape
    logits = (batch, num_heads, num_queries, arrays.k_BSKH.shape[1])
    attention = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            # As jax's own wrapper of cuDNN sends them.
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": spec.scale,
        "intermediate_tensor_shape": {
            "element_type": DTYPES[arrays.q_BTNH.dtype.name],
            "dimensions": [str(size) for size in logits],
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": spec.mask,
        "dropout_rate": 0.0,
        "seed": 0,
        "sliding_window_length": spec.window,
        "max_seg_per_batch": spec.num_documents,
        "is_paged_attention": False,
        **products,
    }
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": attention})


class Library(NamedTuple):
    """The halves of flash attention: functions like `flash_forward` and `flash_backward`."""

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., tuple[Array, Array, Array]]


CUDNN = Library(flash_forward, flash_backward)


def flash(arrays: FlashArrays, spec: FlashSpec, library: Library = CUDNN) -> Array:
    """Return the output `[B, T, N, V]`; queries, keys and values have gradients, a bias has none.

    Args:
        arrays: Of the call.
        spec: Its static choices.
        library: cuDNN, or what stands in for it where there is no GPU.
    """
    others = arrays[3:]

    @jax.custom_vjp
    def run(q_BTNH: Array, k_BSKH: Array, v_BSKV: Array, others: _Others) -> Array:
        return library.forward(FlashArrays(q_BTNH, k_BSKH, v_BSKV, *others), spec)[0]

    def forward(
        q_BTNH: Array, k_BSKH: Array, v_BSKV: Array, others: _Others
    ) -> tuple[Array, tuple[FlashArrays, Array, Array]]:
        arrays = FlashArrays(q_BTNH, k_BSKH, v_BSKV, *others)
        o_BTNV, lse_PNT = library.forward(arrays, spec)
        # Named inside of the forward rule: names outside would be of copies that no residual
        # refers to, and remat would run cuDNN's forward pass again.
        o_BTNV, lse_PNT = named(o_BTNV, ATTENTION_OUT), named(lse_PNT, ATTENTION_LSE)
        return o_BTNV, (arrays, o_BTNV, lse_PNT)

    def backward(
        residuals: tuple[FlashArrays, Array, Array], do_BTNV: Array
    ) -> tuple[Array, Array, Array, None]:
        arrays, o_BTNV, lse_PNT = residuals
        gradients = library.backward(arrays, spec, o_BTNV=o_BTNV, lse_PNT=lse_PNT, do_BTNV=do_BTNV)
        return *gradients, None

    run.defvjp(forward, backward)
    o_BTNV: Array = run(*arrays[:3], others)
    return o_BTNV


_Others = tuple[Array | None, ...]
