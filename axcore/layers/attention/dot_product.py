"""`DotProductAttention`: the attention op over a call's own tokens, or over those in a KV cache."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ModuleError
from axcore.layers.attention.kv_cache import check_all_tokens
from axcore.layers.tokens import TokenInfo
from axcore.module import Module
from axcore.ops import attention, decode_attention

Window = tuple[int | None, int | None]


Heads = Float[Array, "batch time heads head_dim"]


class DotProductAttention(Module):
    """Softmax attention of each query over the keys it may see; the op chooses the kernel.

    Slot protocol: the parent fills `num_heads`. A layer that wraps another core passes more
    of the op's arguments on to it, as keywords: `self.core(q, k, v, info, sinks_N=...)`.
    """

    @config
    class Config(Module.Config["DotProductAttention"]):
        """The config of a `DotProductAttention`: which keys a query sees and how they are weighed.

        Args:
            num_heads: Number of query heads.
            is_causal: Whether a query sees no later keys.
            window: Number of keys a query sees to its left and right, itself not counted; None on
                a side means no limit.
            scale: Factor on the products; by default `1 / sqrt(head_dim)`.
            soft_cap: Caps logits smoothly at this value.
        """

        num_heads: PositiveInt = REQUIRED
        is_causal: bool = True
        window: tuple[int | None, int | None] | None = None
        scale: float | None = None
        soft_cap: float | None = None

        @property
        def window_size(self) -> int | None:
            """The most tokens that a token sees, itself counted; None means no limit."""
            left = self.window[0] if self.window else None
            return None if left is None else left + 1

    def forward(
        self,
        q: Heads,
        k: Num[Array, "rows keys kv_heads head_dim"],
        v: Num[Array, "rows keys kv_heads value_dim"],
        info: TokenInfo,
        **options: Any,
    ) -> Float[Array, "batch time heads value_dim"]:
        """Return each query's weighted mean of values; tokens of other documents are not seen."""
        cfg = self.config
        return attend(
            q,
            k,
            v,
            info,
            causal=cfg.is_causal,
            window=cfg.window,
            scale=cfg.scale,
            soft_cap=cfg.soft_cap,
            **options,
        )


def attend(
    q: Float[Array, "batch time heads head_dim"],
    k: Num[Array, "rows keys kv_heads head_dim"],
    v: Num[Array, "rows keys kv_heads value_dim"],
    info: TokenInfo,
    *,
    causal: bool,
    window: Window | None = None,
    **options: Any,
) -> Float[Array, "batch time heads value_dim"]:
    """Return each query's weighted mean of the values that it may see.

    Args:
        q: Queries of the call's tokens.
        k: Keys of the same tokens, or what a cache returned: all of each row, or pages.
        v: Values, likewise.
        info: Of the call's tokens; where they follow others, it says how keys are to be read.
        causal: Whether a query sees no later keys.
        window: Number of keys that a query sees to its left and right; None means no limit.
        **options: More arguments of the attention op.

    Raises:
        ModuleError: Tokens follow those of a cache, and would see later ones; or they are not all
            of the call's, and the cache does not keep which are there.
    """
    if info.num_cached is None:
        segments = info.segment_ids
        if segments is None and info.token_mask is not None and not causal:
            # A causal query never reaches the padding behind it; any other one does.
            segments = info.token_mask.astype(jnp.int32)
        return attention(q, k, v, causal=causal, window=window, segment_ids=segments, **options)
    if not causal:
        raise ModuleError(
            "attention that is not causal continues a cache, whose tokens did not see these",
            hint="serve models whose attention is causal",
        )
    if info.key_mask is not None:
        return _attend_with_gaps(q, k, v, info, window=window, **options)
    check_all_tokens(info)
    left = window[0] if window else None
    # The decode op reads the cache where it is; other options need its keys gathered.
    if options.keys() <= {"scale", "soft_cap", "sinks_N"}:
        return _decode(q, k, v, info, window=left, **options)
    k, v = gather_keys(k, v, info, q.dtype)
    return attention(
        q, k, v, causal=True, window=(left, 0), query_offset=info.num_cached, **options
    )


def _attend_with_gaps(
    q: Array, k: Array, v: Array, info: TokenInfo, *, window: Window | None, **options: Any
) -> Array:
    """Return attention over those keys of a row that are there."""
    if window is not None and window[0] is not None:
        raise ModuleError(
            f"attention with a window of {window[0]} tokens skips tokens where it serves: whether "
            "the window counts those that were skipped is not defined",
            hint="leave out the window of layers that skip tokens",
        )
    assert info.key_mask is not None
    is_there = _of_rows(info.key_mask, info.page_table)
    is_there &= _is_reached(info, is_there.shape[1])
    k, v = gather_keys(k, v, info, q.dtype)
    start, end = options.pop("key_ranges", (jnp.zeros_like(info.positions), info.positions + 1))
    is_real = jnp.ones_like(info.positions) if info.segment_ids is None else info.segment_ids > 0
    return attention(
        q,
        k,
        v,
        key_ranges=(start, jnp.minimum(end, info.positions + 1)),
        segment_ids=(is_real.astype(jnp.int32), is_there.astype(jnp.int32)),
        **options,
    )


def _decode(q: Array, k: Array, v: Array, info: TokenInfo, **options: Any) -> Array:
    """Return the decode op's result. Its queries are a row's last, so padding goes before them."""
    # With padding behind, it would count among a row's tokens, and caches would have to keep it.
    assert info.num_cached is not None
    num_new = info.num_new()
    padding = q.shape[1] - num_new
    mixed = decode_attention(
        _rolled(q, padding),
        k,
        v,
        info.num_cached + num_new,
        page_table_BP=info.page_table,
        scales=info.scales,
        **options,
    )
    return _rolled(mixed, -padding)


def _rolled(
    x: Float[Array, "batch time heads size"], by: Int[Array, " batch"]
) -> Float[Array, "batch time heads size"]:
    """Return each row with its vectors moved `by` places, those past the end to the front."""
    time = x.shape[1]
    if time == 1:
        return x
    places = (jnp.arange(time, dtype=jnp.int32)[None, :] - by[:, None]) % time
    return jnp.take_along_axis(x, places[:, :, None, None], axis=1)


def gather_keys(k: Array, v: Array, info: TokenInfo, dtype: Any) -> tuple[Array, Array]:
    """Return a cache's keys and values of each row in order, in the dtype of queries."""
    k_scale, v_scale = info.scales or (None, None)
    return _gather_from_cache(k, k_scale, info, dtype), _gather_from_cache(v, v_scale, info, dtype)


def _gather_from_cache(
    x: Num[Array, "rows keys heads size"],
    scale: Float[Array, "rows keys heads"] | None,
    info: TokenInfo,
    dtype: Any,
) -> Float[Array, "batch cached heads size"]:
    """Return the keys or values of each row's tokens, in the dtype of queries; zeros elsewhere."""
    x = _of_rows(x, info.page_table)
    if scale is not None:
        x = x.astype(jnp.float32) * _of_rows(scale, info.page_table)[..., None]
    is_there = _is_reached(info, x.shape[1])
    if info.key_mask is not None:
        is_there &= _of_rows(info.key_mask, info.page_table)
    # Attention gives these places a weight of 0, but 0 times an old NaN in the cache is NaN.
    return jnp.where(is_there[:, :, None, None], x, 0).astype(dtype)


def _is_reached(info: TokenInfo, num_places: int) -> Bool[Array, "batch keys"]:
    """Return which places of each row's cache its tokens have come to."""
    assert info.num_cached is not None
    places = jnp.arange(num_places, dtype=jnp.int32)[None, :]
    return places < (info.num_cached + info.of_call().num_new())[:, None]


def _of_rows(x: Array, page_table: Array | None) -> Array:
    """Return the pages of each row one after the other; rows as they are without a table."""
    if page_table is None:
        return x
    pages = jnp.take(x, page_table, axis=0, mode="clip")
    return pages.reshape(pages.shape[0], -1, *x.shape[2:])
