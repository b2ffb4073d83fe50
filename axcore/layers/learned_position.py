"""`LearnedPosition`: an embedding with a learned vector for each position."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config, find_config
from axcore.errors import ConfigError
from axcore.layers.cache import KVCacheConfig
from axcore.layers.linear import Embedding
from axcore.layers.tokens import TokenInfo
from axcore.module import Initializer, Module, Normal, Param
from axcore.parallel import shard


class LearnedPosition(Module):
    """`embedding(token) + table[position]`; replaces the embedding.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    Slot protocol: the parent fills `vocab_size` and `dim`. Use it with `NoPosition`.
    """

    @config
    class Config(Module.Config["LearnedPosition"]):
        """The config of a `LearnedPosition`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector.
            max_length: Number of positions that have a vector; rows may not be longer.
            embedding: The token table.
            position_init: First value of the positions' table.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        max_length: PositiveInt = 1024
        embedding: Module.Config = Embedding.Config()
        position_init: Initializer = Normal(std=0.02)

        def for_serving(self, cache_size: KVCacheConfig) -> "LearnedPosition.Config":
            """Return itself, where each place of the longest text has a vector.

            Raises:
                ConfigError: Texts may be longer than the table.
            """
            if cache_size.max_length > self.max_length:
                raise ConfigError(
                    f"texts may have {cache_size.max_length} tokens, but only {self.max_length} "
                    "positions have a vector",
                    where="max_length",
                    hint=f"serve texts of at most {self.max_length} tokens",
                )
            return self

    def setup(self, cfg: Config) -> None:
        """Build the embedding and declare the positions' table."""
        if find_config(cfg.embedding, LearnedPosition):
            raise ConfigError("LearnedPosition wraps another LearnedPosition", hint="apply it once")
        self.embedding: Any = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        shape = (cfg.max_length, cfg.dim)
        # A lookup multiplies nothing, so the count of FLOPs leaves the table out.
        self.inactive_params = cfg.max_length * cfg.dim
        self.positions = Param(shape, axes=(None, "embed"), init=cfg.position_init)

    @property
    def weight(self) -> Float[Array, "vocab dim"]:
        """The token table, for a tied head."""
        table: Float[Array, "vocab dim"] = self.embedding.weight
        return table

    def forward(
        self, tokens: Int[Array, "batch time"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the sum of both vectors.

        Raises:
            ConfigError: The rows are longer than the table.
        """
        if info.num_cached is None and tokens.shape[1] > self.config.max_length:
            raise ConfigError(
                f"rows have {tokens.shape[1]} tokens, but only {self.config.max_length} positions "
                "have a vector",
                hint="set max_length to the rows' length, or make them shorter",
            )
        x: Any = self.embedding(tokens, info)
        return x + jnp.take(shard(self.positions, None, "embed"), _places(info), axis=0)


def _places(info: TokenInfo) -> Int[Array, "batch time"]:
    """Return positions; padding behind the tokens of a cache, perhaps beyond the table, has 0."""
    if info.num_cached is None or info.segment_ids is None:
        return info.positions
    return jnp.where(info.segment_ids > 0, info.positions, 0)
