"""Which pairs of query and key blocks have anything to compute."""

import numpy as np

from axcore.ops.attention.types import AttentionSpec
from axcore.ops.blocks import Blocks


def active_block_pairs(
    queries: Blocks, keys: Blocks, spec: AttentionSpec, *, offset_is_static: bool
) -> np.ndarray:
    """Return int32 `[P, 2]`: the (query block, key block) pairs that causality and window leave.

    Pairs are sorted by query block. Where the offset of the queries is known only at run time
    nothing can be left out.
    """
    pairs = np.indices((queries.num, keys.num), dtype=np.int32).reshape(2, -1).T
    if not offset_is_static:
        return pairs
    first_query = pairs[:, 0] * queries.size + spec.query_offset
    last_query = np.minimum(first_query + queries.size, queries.length + spec.query_offset) - 1
    first_key = pairs[:, 1] * keys.size
    last_key = np.minimum(first_key + keys.size, keys.length) - 1
    is_active = np.ones(len(pairs), bool)
    if spec.left is not None:
        is_active &= last_key >= first_query - spec.left
    if spec.right is not None:
        is_active &= first_key <= last_query + spec.right
    return pairs[is_active]
