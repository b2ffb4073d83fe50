"""What all caches of keys and values have in common: how a store is built, and who is refused."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from axcore.errors import ModuleError
from axcore.layers.tokens import TokenInfo
from axcore.module.context import current_context
from axcore.module.rng import format_path


def built_store(cfg: Any, num_rows: int, num_places: int, *, row_axis: str | None = None) -> Any:
    """Returns the store of a cache.

    Args:
        cfg: Of the cache.
        num_rows: Rows or pages.
        num_places: Tokens of each.
        row_axis: Logical axis of rows.
    """
    return cfg.store.build(
        num_rows=num_rows,
        row_axis=row_axis,
        num_places=num_places,
        num_kv_heads=cfg.num_kv_heads,
        head_dim=cfg.head_dim,
        value_dim=cfg.value_dim,
    )


def check_continued(k: Array, info: TokenInfo) -> None:
    """Refuses a call that does not say how many tokens each row has, or has not all of them.

    Raises:
        ModuleError: It has no `num_cached`, or the tokens are not those of the call.
    """
    check_counts(k, info)
    check_all_tokens(info)


def check_counts(k: Array, info: TokenInfo) -> None:
    """Refuses a call that does not say how many tokens each row has.

    Raises:
        ModuleError: It has no `num_cached`, or keys of another number of tokens than its info.
    """
    if info.num_cached is None:
        raise ModuleError(
            "a layer that keeps keys and values is called without TokenInfo.num_cached",
            hint="pass continued_rows(tokens, num_cached, num_new)",
        )
    if k.shape[:2] != info.positions.shape:
        raise ModuleError(
            f"a layer that keeps keys and values has keys of {list(k.shape[:2])} tokens, and its "
            f"TokenInfo has {list(info.positions.shape)}",
            hint="pass info._replace(positions=..., segment_ids=...) of the tokens that the layer "
            "is called with",
        )


def check_all_tokens(info: TokenInfo) -> None:
    """Refuses tokens that are not all of a call's, where a cache is read without gaps.

    Raises:
        ModuleError: They are not.
    """
    if not info.has_all_tokens:
        layer = current_context("a cache was asked").path
        raise ModuleError(
            "attention that serves is called with other tokens than its call has: its TokenInfo "
            "has other positions or segment_ids. A layer that skips tokens leaves gaps in its "
            "cache, which would be read as if they were keys",
            where=format_path(layer) or "the root",
            hint="give the attention kv_cache=NoCache.Config(layout=GappedCache.Config()), which "
            "keeps what the layer skipped",
        )


def rows_of(batch: int, num_rows: int, info: TokenInfo) -> Any:
    """Returns which row of a cache each row of a call has, `[batch]`.

    Raises:
        ModuleError: The call does not say it, and has other rows than the cache.
    """
    if info.slots is not None:
        return info.slots
    if batch != num_rows:
        raise ModuleError(
            f"the call has {batch} rows, and the cache {num_rows}",
            hint="say which of them they are: continued_rows(..., slots=slots)",
        )
    return jnp.arange(batch, dtype=jnp.int32)
