"""What all caches of keys and values have in common: how a store is built, and who is refused."""

from typing import Any

import jax.numpy as jnp

from axcore.errors import ModuleError
from axcore.layers.tokens import TokenInfo


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


def check_continued(info: TokenInfo) -> None:
    """Refuses a call that does not say how many tokens each row has.

    Raises:
        ModuleError: It has no `num_cached`.
    """
    if info.num_cached is None:
        raise ModuleError(
            "a layer that keeps keys and values is called without TokenInfo.num_cached",
            hint="pass continued_rows(tokens, num_cached, num_new)",
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
