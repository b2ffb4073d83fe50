# ruff: noqa: N815 - fields carry shape letters
"""What an attention call is made of: its arrays and its static choices.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width.
Query head `n` reads key head `n // (N // K)`.
"""

from typing import NamedTuple

import attrs
from jax import Array


class AttentionInputs(NamedTuple):
    """The arrays of one call, a pytree. A part that is not used is `None`.

    `q_segments_BT` and `k_segments_BS` come together, as do `k_start_BT` and `k_end_BT`.
    `bias_BNTS` may have size 1 in any dimension. `query_offset_B` is added to the static offset.
    `dropout_seeds_BN`, uint32, are those of `dropout.dropout_seeds`.
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
