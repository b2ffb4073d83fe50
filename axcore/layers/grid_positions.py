"""`GridPositions`: where tokens are, in texts whose pictures have rows and columns.

The soft tokens of an input are at one time, and each at its own row and column, counted from the
position of the text before it. The text behind it continues where the longer side of the grid ends,
so positions are not how many tokens came before.

Letters: B rows, T tokens of a row, N soft tokens of an input.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ConfigError
from axcore.layers.attention.kv_cache import ContiguousCache, PagedCache
from axcore.layers.attention.kv_store import IntegerStore
from axcore.layers.cache import KVCacheConfig
from axcore.layers.soft_tokens import FIRST_SOFT_TOKEN, num_soft_tokens_of
from axcore.layers.tokens import GRID_POSITIONS, TokenInfo
from axcore.module import Module, entry


class GridPositions(Module):
    """An embedding with soft tokens, which also sends the positions of tokens in `GRID_POSITIONS`.

    Where the model serves, a cache keeps by how much each token moves the position: pages that
    texts share, and tokens that are taken back, are right with it as keys and values are. Slot
    protocol: the parent fills `vocab_size` and `dim`.

    Source: Wang et al. 2024, arXiv:2409.12191, section 2.1.
    """

    @config
    class Config(Module.Config["GridPositions"]):
        """The config of a `GridPositions`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector.
            grid: Rows and columns of an input's soft tokens, N in all, row by row.
            embedding: A `SoftTokenEmbedding`.
            cache: Keeps how far tokens move the position; of a model that serves.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        grid: tuple[PositiveInt, PositiveInt] = REQUIRED
        embedding: Module.Config = REQUIRED
        cache: Module.Config | None = None

        def for_serving(self, cache_size: KVCacheConfig) -> "GridPositions.Config":
            """Return itself with a cache."""
            kind: Any = ContiguousCache if cache_size.pages is None else PagedCache
            one = kind.Config(
                num_kv_heads=1, head_dim=1, value_dim=None, store=IntegerStore.Config()
            )
            return evolve(self, cache=one.with_size(cache_size))

    def setup(self, cfg: Config) -> None:
        """Build the embedding.

        Raises:
            ConfigError: The grid has another number of tokens than the embedding.
        """
        rows, columns = cfg.grid
        if rows * columns != num_soft_tokens_of(cfg.embedding):
            raise ConfigError(
                f"grid is {rows} x {columns}, and an input has "
                f"{num_soft_tokens_of(cfg.embedding)} soft tokens",
                where="grid",
                hint="set both to what the encoder makes of an input",
            )
        self.embedding: Any = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        if cfg.cache is not None:
            self.cache = cfg.cache.build()

    @property
    def weight(self) -> Float[Array, "vocab dim"]:
        """The token table, for a tied head."""
        table: Float[Array, "vocab dim"] = self.embedding.weight
        return table

    def forward(self, tokens: Int[Array, "B T"], info: TokenInfo) -> Float[Array, "B T dim"]:
        """Return the vectors of tokens, and send their positions."""
        self.set_shared(GRID_POSITIONS, self._positions(tokens, info))
        vectors: Float[Array, "B T dim"] = self.embedding(tokens, info)
        return vectors

    @entry
    def store(self, soft: Float[Array, "n N dim"], slots: Int[Array, " n"]) -> None:
        """Keep the soft tokens of inputs; see `SoftTokenTable`."""
        self.embedding.store(soft, slots)

    def _positions(self, tokens: Int[Array, "B T"], info: TokenInfo) -> Int[Array, "B T 3"]:
        """Return the position of each token on each axis: time, row, column."""
        rows, columns = self.config.grid
        is_soft = tokens >= FIRST_SOFT_TOKEN
        place = jnp.where(is_soft, (tokens - FIRST_SOFT_TOKEN) % (rows * columns), 0)
        is_last = place == rows * columns - 1
        moved = jnp.where(is_soft, jnp.where(is_last, max(rows, columns), 0), 1)
        before = self._moved_before(moved.astype(jnp.int32), info)
        row, column = jnp.divmod(place, columns)
        return jnp.stack([before, before + row, before + column], axis=-1)

    def _moved_before(self, moved: Int[Array, "B T"], info: TokenInfo) -> Int[Array, "B T"]:
        """Return how far the tokens before each one of its document moved the position."""
        before = jnp.cumsum(moved, axis=1) - moved
        if info.num_cached is None:
            # Documents of a packed row begin at 0 each: what those before it moved is taken off.
            first = jnp.arange(moved.shape[1], dtype=jnp.int32)[None, :] - info.positions
            return before - jnp.take_along_axis(before, jnp.maximum(first, 0), axis=1)
        one = moved[..., None, None]
        kept, _, read = self.cache(one, one, info)
        if read.page_table is not None:
            kept = jnp.take(kept, read.page_table, axis=0, mode="clip")
        of_row = kept.reshape(moved.shape[0], -1)
        places = jnp.arange(of_row.shape[1], dtype=jnp.int32)[None, :]
        of_cached = jnp.where(places < info.num_cached[:, None], of_row, 0)
        return before + jnp.sum(of_cached, axis=1, keepdims=True)
