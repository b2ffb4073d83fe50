"""The logical axes of a decode-attention call's arrays.

Letters: as of `types.py`.
"""

from axcore.ops.decode.types import DecodeInputs, DecodeSpec
from axcore.parallel.shard_op import OpSharding, axes


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
