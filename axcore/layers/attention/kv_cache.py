"""Caches of keys and values: what fills the slot `kv_cache` of attention.

A cache is called with the keys and values of new tokens, after positions. It returns those that
the core attends over, in the places in which the core expects them: as they come where nothing is
kept, all that was kept where a model serves.

Letters of shapes: B rows, T new tokens of a row, S tokens that a row has room for, K key heads.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ModuleError
from axcore.layers.serving_room import ServingRoom
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, Param

Keys = Float[Array, "batch time kv_heads head_dim"]
Values = Float[Array, "batch time kv_heads value_dim"]
AllKeys = Float[Array, "batch room kv_heads head_dim"]
AllValues = Float[Array, "batch room kv_heads value_dim"]


class NoCache(Module):
    """Keeps nothing: every call sees its own tokens only. What a model is trained with.

    Slot protocol: the parent fills `num_kv_heads`, `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["NoCache"]):
        """Describes a `NoCache`."""

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt = REQUIRED

        def for_serving(self, room: ServingRoom) -> "ContiguousCache.Config":
            """Returns what keeps them."""
            return ContiguousCache.Config(
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                value_dim=self.value_dim,
                num_rows=room.num_rows,
                capacity=room.capacity,
                dtypes=self.dtypes,
            )

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[Keys, Values]:
        """Returns both as they are.

        Raises:
            ModuleError: The call continues earlier tokens, which were not kept.
        """
        if info.num_cached is not None:
            raise ModuleError(
                "the tokens of this call follow others, and this layer keeps no keys and values",
                hint="build the model from for_serving(cfg, room)",
            )
        return k, v


class ContiguousCache(Module):
    """Keeps the keys and values of each row in room of its own, for `capacity` tokens.

    The token at position `p` of a row has place `p`. Padding is kept too, behind the row's tokens,
    until they come; what no longer fits is dropped. Slot protocol: the parent fills `num_kv_heads`,
    `head_dim` and `value_dim`.
    """

    @config
    class Config(Module.Config["ContiguousCache"]):
        """Describes a `ContiguousCache`.

        Args:
            num_kv_heads: Number of key and value heads.
            head_dim: Size of a key.
            value_dim: Size of a value.
            num_rows: Rows that there is room for.
            capacity: Tokens of a row that there is room for.
        """

        num_kv_heads: PositiveInt = REQUIRED
        head_dim: PositiveInt = REQUIRED
        value_dim: PositiveInt = REQUIRED
        num_rows: PositiveInt = REQUIRED
        capacity: PositiveInt = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Declares the room, in the dtype that keys and values are computed in."""
        self.keys = self._room(cfg.head_dim)
        self.values = self._room(cfg.value_dim)

    def forward(self, k: Keys, v: Values, info: TokenInfo) -> tuple[AllKeys, AllValues]:
        """Returns all keys and values of each row, `[B, S, K, size]`, the new ones among them.

        Raises:
            ModuleError: The call does not say how many tokens each row has.
        """
        if info.num_cached is None:
            raise ModuleError(
                "a layer that keeps keys and values is called without TokenInfo.num_cached",
                hint="pass continued_rows(tokens, num_cached, num_new)",
            )
        return self._with_new("keys", k, info), self._with_new("values", v, info)

    def _room(self, size: int) -> Any:
        cfg = self.config
        return Param(
            (cfg.num_rows, cfg.capacity, cfg.num_kv_heads, size),
            axes=("batch", None, "kv_heads", None),
            init=0.0,
            is_buffer=True,
            dtype=self.dtypes.compute,
        )

    def _with_new(self, name: str, new: Array, info: TokenInfo) -> Array:
        held = getattr(self, name)
        rows = jnp.arange(new.shape[0], dtype=jnp.int32)[:, None]
        kept = held.at[rows, info.positions].set(new.astype(held.dtype), mode="drop")
        self.update(name, kept)
        return kept
