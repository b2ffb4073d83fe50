"""`KeyStore`: the arrays in which a cache keeps keys and values, and how they are written.

A cache decides which row and place a token has; the store, in which form it is kept there. Where
that is not the form that keys are computed in, the info that it returns says how to read it.

Letters of shapes: R rows or pages, S tokens of each, K key heads.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, Param

Keys = Float[Array, "batch time kv_heads head_dim"]
Values = Float[Array, "batch time kv_heads value_dim"]


class Places(NamedTuple):
    """Where a call's tokens are kept; what is out of range is dropped.

    Args:
        rows: Row or page of each token.
        places: Place of each token there.
    """

    rows: Int[Array, "batch #time"]
    places: Int[Array, "batch time"]


class KeyStore(Module):
    """Keeps keys and values as they are, in the dtype that they are computed in.

    Slot protocol: the parent fills all fields.
    """

    @config
    class Config(Module.Config["KeyStore"]):
        """Describes a `KeyStore`.

        Args:
            num_rows: Rows, or pages.
            row_axis: Logical axis of these.
            num_places: Tokens of each.
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value; None where keys are the values, too.
        """

        num_rows: PositiveInt = REQUIRED
        row_axis: str | None = REQUIRED
        num_places: PositiveInt = REQUIRED
        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt | None = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Declares the room."""
        self.keys = key_room(cfg, (cfg.head_dim,), self.dtypes.compute)
        if cfg.value_dim is not None:
            self.values = key_room(cfg, (cfg.value_dim,), self.dtypes.compute)

    def forward(
        self, k: Keys, v: Values, places: Places, info: TokenInfo
    ) -> tuple[Any, Any, TokenInfo]:
        """Returns all that is kept, `[R, S, K, size]`, the new ones among it, and the info."""
        keys = with_new(self.keys, k, places)
        self.update("keys", keys)
        if self.config.value_dim is None:
            return keys, keys, info
        values = with_new(self.values, v, places)
        self.update("values", values)
        return keys, values, info


def key_room(cfg: Any, size: tuple[int, ...], dtype: str) -> Any:
    """Declares room for something of each head of each token.

    Args:
        cfg: Of the store.
        size: Of a head.
        dtype: Of the room.
    """
    return Param(
        (cfg.num_rows, cfg.num_places, cfg.num_kv_heads, *size),
        axes=(cfg.row_axis, None, "kv_heads", *(None for _ in size)),
        init=0.0,
        is_buffer=True,
        dtype=dtype,
    )


def with_new(held: Array, new: Array, places: Places) -> Array:
    """Returns what is held, `[R, S, ...]`, and what is new, `[batch, time, ...]`, in its places."""
    at = held.at[places.rows, places.places]
    kept: Array = at.set(new.astype(held.dtype), mode="drop", wrap_negative_indices=False)
    return kept
