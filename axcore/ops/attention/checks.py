"""Checks of an attention call's arguments: every mismatch is one error that names the sizes."""

import math

import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.attention.types import AttentionInputs


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
