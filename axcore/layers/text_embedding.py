"""Embeddings of text encoders: `TokenTypes` and `NormedEmbedding`, each around another one."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers.linear import Embedding
from axcore.layers.norm import LayerNorm
from axcore.layers.tokens import TokenInfo
from axcore.module import Initializer, Module, Normal, Param
from axcore.parallel import shard

TOKEN_TYPES = "token_types"
"""The shared value from which `TokenTypes` reads the type of each token: `[batch, time]` ints."""

Tokens = Int[Array, "batch time"]
Vectors = Float[Array, "batch time dim"]
Table = Float[Array, "vocab dim"]


class TokenTypes(Module):
    """`embedding(token) + table[type]`, by which a model distinguishes two texts of a row.

    Types are the shared value `TOKEN_TYPES`; without it all tokens are of type 0. Slot protocol:
    the parent fills `vocab_size` and `dim`.

    Source: Devlin et al. 2018, arXiv:1810.04805, figure 2 (segment embeddings).
    """

    @config
    class Config(Module.Config["TokenTypes"]):
        """The config of a `TokenTypes`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector.
            num_types: Number of types.
            embedding: The token table.
            weight_init: First value of the types' table.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        num_types: PositiveInt = 2
        embedding: Module.Config = Embedding.Config()
        weight_init: Initializer = Normal(std=0.02)

    def setup(self, cfg: Config) -> None:
        """Build the embedding and declare the types' table."""
        self.embedding: Any = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        shape = (cfg.num_types, cfg.dim)
        # A lookup multiplies nothing, so the count of FLOPs leaves the table out.
        self.inactive_params = cfg.num_types * cfg.dim
        self.types = Param(shape, axes=(None, "embed"), init=cfg.weight_init)

    @property
    def weight(self) -> Table:
        """The token table, for a tied head."""
        table: Table = self.embedding.weight
        return table

    def forward(self, tokens: Tokens, info: TokenInfo) -> Vectors:
        """Return the sum of both vectors."""
        x: Any = self.embedding(tokens, info)
        types = self.get_shared(TOKEN_TYPES)
        if types is None:
            types = jnp.zeros_like(tokens)
        return x + jnp.take(shard(self.types, None, "embed"), types, axis=0)


class NormedEmbedding(Module):
    """`norm(embedding(token))`. Slot protocol: the parent fills `vocab_size` and `dim`."""

    @config
    class Config(Module.Config["NormedEmbedding"]):
        """The config of a `NormedEmbedding`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector.
            embedding: The token table, with positions or types where it knows them.
            norm: Applied to its vectors.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        embedding: Module.Config = Embedding.Config()
        norm: Module.Config = LayerNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the embedding and the norm."""
        self.embedding: Any = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.norm = cfg.norm.build(dim=cfg.dim)

    @property
    def weight(self) -> Table:
        """The token table, for a tied head."""
        table: Table = self.embedding.weight
        return table

    def forward(self, tokens: Tokens, info: TokenInfo) -> Vectors:
        """Return the normalised vectors."""
        return self.norm(self.embedding(tokens, info))
