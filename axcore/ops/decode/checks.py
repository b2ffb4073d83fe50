"""Checks of a decode-attention call's arguments: a mismatch is one error that names the sizes."""

import jax.numpy as jnp
from jax import Array

from axcore.errors import KernelError
from axcore.ops.attention.checks import check_numbers
from axcore.ops.decode.types import DecodeInputs, DecodeSpec
from axcore.ops.decode.widening import NARROW


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
    if not (k == v and str(k) in NARROW):
        raise KernelError(
            f"decode_attention: there are scales, and k is {k}, v {v}; expected one of "
            f"{', '.join(NARROW)} for both."
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
