"""`attend`: the attention op over a call's own tokens, or over those that a cache kept."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.errors import ModuleError
from axcore.layers.tokens import TokenInfo
from axcore.ops import attention, decode_attention

Window = tuple[int | None, int | None]


def attend(
    q: Float[Array, "batch time heads head_dim"],
    k: Float[Array, "batch keys kv_heads head_dim"],
    v: Float[Array, "batch keys kv_heads value_dim"],
    info: TokenInfo,
    *,
    causal: bool,
    window: Window | None = None,
    **options: Any,
) -> Float[Array, "batch time heads value_dim"]:
    """Returns each query's weighted mean of the values that it may see.

    Args:
        q: Queries of the call's tokens.
        k: Keys of the same tokens, or of all that a cache keeps of their rows.
        v: Values, likewise.
        info: Of the call's tokens.
        causal: Whether a query sees no later keys.
        window: Number of keys that a query sees to its left and right; None is no limit.
        **options: More arguments of the attention op.

    Raises:
        ModuleError: Tokens follow those of a cache, and would see later ones.
    """
    if info.num_cached is None:
        return attention(
            q, k, v, causal=causal, window=window, segment_ids=info.segment_ids, **options
        )
    if not causal:
        raise ModuleError(
            "attention that is not causal continues a cache, whose tokens did not see these",
            hint="serve models whose attention is causal",
        )
    left = window[0] if window else None
    if options.keys() <= {"scale", "soft_cap", "sinks_N"}:
        lengths_B = info.num_cached + q.shape[1]
        return decode_attention(q, k, v, lengths_B, window=left, **options)
    k, v = (_held(x, info.num_cached + q.shape[1]) for x in (k, v))
    return attention(
        q, k, v, causal=True, window=(left, 0), query_offset=info.num_cached, **options
    )


def _held(x: Float[Array, "batch keys heads size"], lengths: Int[Array, " batch"]) -> Array:
    """Returns what a cache holds, zeros behind it: no number there is masked by a weight of 0."""
    places = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
    return jnp.where((places < lengths[:, None])[:, :, None, None], x, 0)
