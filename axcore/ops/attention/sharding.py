"""The logical axes of an attention call's arrays.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
"""

from typing import Any

from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.parallel.shard_op import OpSharding, axes

HEADS = "kv_heads"
"""Query heads are split as key heads are, or else a device would lack the keys it needs."""


def attention_sharding(inputs: AttentionInputs, spec: AttentionSpec) -> OpSharding:
    """Return how a call is split: kernels see rows and heads split, and time whole.

    Where time is split it is split around them: see `context_parallel`.
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
