# ruff: noqa: N815 - fields carry shape letters
"""What a decode-attention call is made of: queries, and a cache that holds each row's tokens.

Letters: B batch rows, T queries of a row, S keys that a row has room for, N query heads, K key
heads, H key width, V value width; M pages of the cache, C keys of a page, P pages of a row.
"""

from typing import NamedTuple

import attrs
from jax import Array

from axcore.ops.attention.types import AttentionSpec


class DecodeInputs(NamedTuple):
    """The arrays of one call, a pytree.

    The cache is contiguous, `k [B, S, K, H]` and `v [B, S, K, V]`, or paged where there is a page
    table: `k [M, C, K, H]` and `v [M, C, K, V]`. Where it is kept in fewer bits, each key and value
    has a scale: `[M, C, K]`, or `[B, S, K]`.
    """

    q_BTNH: Array
    k: Array
    v: Array
    lengths_B: Array
    page_table_BP: Array | None = None
    sinks_N: Array | None = None
    key_scale_MCK: Array | None = None
    value_scale_MCK: Array | None = None

    @property
    def capacity(self) -> int:
        """Return S, how many keys a row has room for."""
        keys: int = self.k.shape[1]
        return keys if self.page_table_BP is None else keys * self.page_table_BP.shape[1]


@attrs.frozen(kw_only=True)
class DecodeSpec:
    """The static choices of one call; hashable. `left` bounds how far back a query sees."""

    scale: float
    left: int | None = None
    soft_cap: float | None = None

    def as_attention(self) -> AttentionSpec:
        """Return the choices as those of causal attention."""
        return AttentionSpec(scale=self.scale, left=self.left, right=0, soft_cap=self.soft_cap)
