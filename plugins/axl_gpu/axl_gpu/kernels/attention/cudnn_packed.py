"""Packed sequences by cuDNN from Hopper on: documents by length and offset, with no bias.

The log-sum-exp takes MAX_DOCUMENTS times the memory, and nothing else grows with the square of the
length. It runs where it is pinned, for it takes on trust what no predicate can see: that each
document of a row is in one piece, that there are at most MAX_DOCUMENTS, and that keys have the
segments of the queries. A row where that is not so gives NaN.

Letters: B batch, T tokens, N heads, H key width, V value width, M documents of a row, P pairs of
them and rows (B M).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from axcore.ops import AttentionInputs, AttentionSpec, Call
from axl_gpu.kernels.attention.cudnn import MAX_WIDE_WIDTH as MAX_WIDTH
from axl_gpu.kernels.attention.cudnn import (
    flash_spec,
    unsupported_arrays_reason,
    unsupported_mask_reason,
)
from axl_gpu.kernels.attention.cudnn_call import CUDNN, FlashArrays, Library, flash

MAX_DOCUMENTS = 32
"""In a row, padding not counted."""


def unsupported_reason(call: Call) -> str | None:
    """Return None where cuDNN can serve the call packed, else the reason why not."""
    if not call.has("q_segments"):
        return "takes segments, and there are none"
    width, value_width = call.shape("k")[-1], call.shape("v")[-1]
    if width != value_width:
        return f"takes values as wide as keys, not {value_width} and {width}"
    if width % 8 or width > MAX_WIDTH:
        return f"takes widths that are multiples of 8 up to {MAX_WIDTH}, not {width}"
    if call.shape("q")[2] != call.shape("k")[2]:
        return (
            "takes as many key heads as query heads, "
            f"not {call.shape('k')[2]} and {call.shape('q')[2]}"
        )
    return unsupported_arrays_reason(call) or unsupported_mask_reason(call)


def cudnn_packed_attention(
    inputs: AttentionInputs, spec: AttentionSpec, *, library: Library = CUDNN
) -> tuple[Array, Array]:
    """Return `(o_BTNV, zeros)`: `unsupported_reason` refuses calls that ask for the log-sum-exp.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        library: cuDNN, or what stands in for it where there is no GPU.
    """
    q_BTNH, segments_BT = inputs.q_BTNH, inputs.q_segments_BT
    assert segments_BT is not None
    documents = documents_of(segments_BT)
    is_as_trusted_B = documents.is_packed_B & jnp.all(segments_BT == inputs.k_segments_BS, axis=1)
    token = q_BTNH.shape[2] * q_BTNH.shape[3]
    lengths, offsets = documents.lengths_P, documents.starts * token
    # For the gradients: cuDNN writes none for padding, and by this `where` what was in memory
    # there is dropped.
    qkv = (_without_padding(x, segments_BT) for x in (q_BTNH, inputs.k_BSKH, inputs.v_BSKV))
    arrays = FlashArrays(
        *qkv, q_lengths_P=lengths, k_lengths_P=lengths, q_offsets=offsets, k_offsets=offsets
    )
    o_BTNV = flash(arrays, flash_spec(spec, num_documents=MAX_DOCUMENTS), library)
    o_BTNV = _without_padding(o_BTNV, segments_BT)
    # What cuDNN computes for such a row is plausible and wrong, and no predicate can see ids
    # while tracing. NaN is found at the first step.
    nan = jnp.asarray(jnp.nan, o_BTNV.dtype)
    o_BTNV = jnp.where(is_as_trusted_B[:, None, None, None], o_BTNV, nan)
    return o_BTNV, jnp.zeros(o_BTNV.shape[:-1], jnp.float32)


def _without_padding(x_BTNH: Array, segments_BT: Array) -> Array:
    """Return zeros for padding, where cuDNN writes nothing, and for its gradients."""
    is_padding_BT11 = (segments_BT == 0)[:, :, None, None]
    return jnp.where(is_padding_BT11, jnp.zeros((), x_BTNH.dtype), x_BTNH)


class Documents(NamedTuple):
    """Where the documents of all rows are, those of the first row first.

    Args:
        lengths_P: Tokens of each as `[B, M]`; 0 past the last.
        starts: First token of each, counted over all rows, as `[B, M + 1]`; all tokens past the
            last.
        is_packed_B: Whether each document of a row is in one piece, and there are at most M.
    """

    lengths_P: Array
    starts: Array
    is_packed_B: Array


def documents_of(segments_BT: Array) -> Documents:
    """Return the runs of equal segment ids that are not padding."""
    batch, length = segments_BT.shape
    before_BT = jnp.pad(segments_BT[:, :-1], ((0, 0), (1, 0)))
    starts_here_BT = (segments_BT != before_BT) & (segments_BT != 0)
    run_BT = jnp.where(segments_BT != 0, jnp.cumsum(starts_here_BT, axis=1) - 1, -1)
    is_run_BMT = run_BT[:, None, :] == jnp.arange(MAX_DOCUMENTS)[None, :, None]
    lengths_BM = jnp.sum(is_run_BMT, axis=2, dtype=jnp.int32)
    first_BM = jnp.argmax(is_run_BMT, axis=2).astype(jnp.int32)
    row_B = jnp.arange(batch, dtype=jnp.int32) * length
    # cuDNN wants all documents first, those of length 0 last; stable, to keep them in the order
    # of rows.
    order = jnp.argsort(lengths_BM.reshape(-1) == 0, stable=True)
    lengths_P = lengths_BM.reshape(-1)[order]
    starts_P = (first_BM + row_B[:, None]).reshape(-1)[order]
    starts_P = jnp.where(lengths_P == 0, batch * length, starts_P)
    starts = jnp.pad(starts_P, (0, batch), constant_values=batch * length)
    return Documents(
        lengths_P.reshape(batch, MAX_DOCUMENTS),
        starts.reshape(batch, MAX_DOCUMENTS + 1),
        _stands_in_one_piece(segments_BT, starts_here_BT),
    )


def _stands_in_one_piece(segments_BT: Array, starts_here_BT: Array) -> Array:
    """Return whether no segment id begins twice in a row, and few enough begin."""
    sorted_BT = jnp.sort(jnp.where(starts_here_BT, segments_BT, 0), axis=1)
    again_BT = (sorted_BT[:, 1:] == sorted_BT[:, :-1]) & (sorted_BT[:, 1:] != 0)
    is_few_B = jnp.sum(starts_here_BT, axis=1) <= MAX_DOCUMENTS
    return is_few_B & ~jnp.any(again_BT, axis=1)
