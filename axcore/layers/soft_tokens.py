"""`SoftTokenEmbedding`: vectors of an encoder, in the places where a text has a picture or a sound.

Token numbers below `FIRST_SOFT_TOKEN` are those of the vocabulary; number `FIRST_SOFT_TOKEN + n` is
soft token n. In training that is the nth vector of its row, which the model sends in the channel
`SOFT_TOKENS`. Where the model serves, it is the nth vector of a table that the engine fills, one
slot for each input. So neither decoder nor engine knows what an input is.

Letters: B rows, T tokens of a row, S soft tokens of a row, I inputs in the table, N soft tokens of
an input.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveInt, config, find_config
from axcore.errors import ConfigError, ModuleError
from axcore.layers.cache import KVCacheConfig
from axcore.layers.linear import Embedding
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, Param, entry

# Far above any vocabulary, so that a soft token is known without one, and is out of range
# wherever numbers of tokens are counted. An engine hands out 2**31 - 2**24 of them.
FIRST_SOFT_TOKEN = 1 << 24
"""The number of the first soft token."""

SOFT_TOKENS = "soft_tokens"
"""The channel in which a model sends the soft tokens of each row, `[B, S, dim]`."""

ENCODER_CACHE = "encoder_cache"
"""Logical axis of what is kept of each input that was encoded; it has no pages."""


class _SoftTokens(Module):
    """What the embedding of training and that of serving share."""

    embedding: Any

    @property
    def weight(self) -> Float[Array, "vocab dim"]:
        """The token table, for a tied head."""
        table: Float[Array, "vocab dim"] = self.embedding.weight
        return table

    def _placed(
        self,
        tokens: Int[Array, "B T"],
        info: TokenInfo | None,
        soft: Float[Array, "B T dim"] | None,
    ) -> Float[Array, "B T dim"]:
        """Return the vectors of tokens; `soft` has those of the places with soft tokens."""
        is_soft = tokens >= FIRST_SOFT_TOKEN
        x: Array = self.embedding(jnp.where(is_soft, 0, tokens), info)
        return x if soft is None else jnp.where(is_soft[..., None], soft.astype(x.dtype), x)


class SoftTokenEmbedding(_SoftTokens):
    """Soft tokens in the places of a row that have them; replaces the embedding.

    Slot protocol: the parent fills `vocab_size` and `dim`. The model around it sends `SOFT_TOKENS`;
    where it sends none, rows have none.

    Source: Liu et al. 2023, arXiv:2304.08485, section 4.1.
    """

    @config
    class Config(Module.Config["SoftTokenEmbedding"]):
        """The config of a `SoftTokenEmbedding`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector.
            num_tokens: N.
            embedding: The token table.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        num_tokens: PositiveInt = REQUIRED
        embedding: Module.Config = Embedding.Config()

        def for_serving(self, cache_size: KVCacheConfig) -> "SoftTokenTable.Config":
            """Return the embedding of a model that serves.

            Its table has room for all inputs that one call can read: a piece of a text may begin
            with the end of one and end with the beginning of another.
            """
            rows, tokens = cache_size.num_rows, cache_size.call_tokens
            return SoftTokenTable.Config(
                vocab_size=self.vocab_size,
                dim=self.dim,
                num_tokens=self.num_tokens,
                num_inputs=2 * min(rows, tokens) + -(-tokens // self.num_tokens),
                embedding=self.embedding,
                dtypes=self.dtypes,
            )

    def setup(self, cfg: Config) -> None:
        """Build the token table."""
        self.embedding = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)

    def forward(
        self, tokens: Int[Array, "B T"], info: TokenInfo | None = None
    ) -> Float[Array, "B T dim"]:
        """Return the vectors of tokens, soft ones among them."""
        soft = self.get_shared(SOFT_TOKENS)
        if soft is None:
            return self._placed(tokens, info, None)
        # Read once: layers behind it, which may be scanned or in a pipeline, need not carry it.
        self.set_shared(SOFT_TOKENS, None)
        # Clipped for the other tokens, whose vectors are not taken.
        places = jnp.clip(tokens - FIRST_SOFT_TOKEN, 0, soft.shape[1] - 1)
        return self._placed(tokens, info, jnp.take_along_axis(soft, places[..., None], axis=1))


class SoftTokenTable(_SoftTokens):
    """Soft tokens out of a table, which `store` fills: what a model has that serves.

    Soft token n is vector n of the table, counted around it as often as needed: the engine never
    gives a number twice, so that texts with equal numbers have equal inputs. Slot protocol: the
    parent fills `vocab_size` and `dim`.
    """

    @config
    class Config(Module.Config["SoftTokenTable"]):
        """The config of a `SoftTokenTable`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector.
            num_tokens: N.
            num_inputs: I.
            embedding: The token table.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        num_tokens: PositiveInt = REQUIRED
        num_inputs: PositiveInt = REQUIRED
        embedding: Module.Config = Embedding.Config()

    def setup(self, cfg: Config) -> None:
        """Build the token table, and declare that of soft tokens."""
        self.embedding = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)
        self.table = Param(
            (cfg.num_inputs, cfg.num_tokens, cfg.dim),
            axes=(ENCODER_CACHE, None, "embed"),
            init=0.0,
            is_buffer=True,
            dtype=self.dtypes.compute,
        )

    def forward(
        self, tokens: Int[Array, "B T"], info: TokenInfo | None = None
    ) -> Float[Array, "B T dim"]:
        """Return the vectors of tokens, soft ones among them."""
        vectors = self.table.reshape(-1, self.config.dim)
        places = (tokens - FIRST_SOFT_TOKEN) % len(vectors)
        return self._placed(tokens, info, jnp.take(vectors, places, axis=0))

    @entry
    def store(self, soft: Float[Array, "n N dim"], slots: Int[Array, " n"]) -> None:
        """Keep the soft tokens of inputs.

        Args:
            soft: Of each input.
            slots: Where they are kept, 0 to I - 1.
        """
        self.update("table", self.table.at[slots].set(soft.astype(self.table.dtype)))


def num_soft_tokens_of(embedding: Any) -> int:
    """Return N of the config of an embedding with soft tokens, or of one around it.

    Raises:
        ConfigError: It has none.
    """
    kinds = SoftTokenEmbedding.Config | SoftTokenTable.Config
    found = find_config(embedding, lambda node: isinstance(node, kinds))
    if not found:
        raise ConfigError(
            f"the decoder's embedding is {type(embedding).__qualname__}, which has no place for "
            "soft tokens",
            where="decoder.embedding",
            hint="take the config of multimodal(...), or wrap the embedding in SoftTokenEmbedding",
        )
    return int(found[0].node.num_tokens)


def check_soft_tokens(soft: jax.Array, num_tokens: int) -> None:
    """Check what an encoder returned.

    Raises:
        ModuleError: It has another number of soft tokens.
    """
    if soft.shape[1] != num_tokens:
        raise ModuleError(
            f"the encoder made {soft.shape[1]} soft tokens of an input, and the embedding has "
            f"num_tokens={num_tokens}",
            hint=f"set num_tokens to {soft.shape[1]}",
        )
