"""`WholeInputs` and `WholeInputAttention`: the soft tokens of one input see each other.

Tokens of text see what is before them, and soft tokens all of their own input too. The embedding
knows where inputs are, and sends it; attention of a language model reads it in the place of the
plain one, and everything else of the model stays as it is.

Letters: B rows, T tokens of a row, N soft tokens of an input.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from axcore.config import REQUIRED, PositiveInt, config, find_config
from axcore.errors import ModuleError
from axcore.layers.attention.dot_product import DotProductAttention, Heads, gather_keys
from axcore.layers.attention.kv_cache import check_all_tokens
from axcore.layers.soft_tokens import FIRST_SOFT_TOKEN, num_soft_tokens_of
from axcore.layers.tokens import TokenInfo
from axcore.module import Module, entry
from axcore.ops import attention

VISIBLE_ENDS = "visible_ends"
"""The channel in which `WholeInputs` sends the first place that a token does not see, `[B, T]`."""


class WholeInputs(Module):
    """An embedding with soft tokens, which also sends in `VISIBLE_ENDS` how far tokens see.

    Slot protocol: the parent fills `vocab_size` and `dim`.

    Source: Gemma Team 2025, arXiv:2503.19786, section 2.1.
    """

    @config
    class Config(Module.Config["WholeInputs"]):
        """The config of a `WholeInputs`.

        Args:
            vocab_size: Number of tokens.
            dim: Size of a vector.
            embedding: A `SoftTokenEmbedding`.
        """

        vocab_size: PositiveInt = REQUIRED
        dim: PositiveInt = REQUIRED
        embedding: Module.Config = REQUIRED

    def setup(self, cfg: Config) -> None:
        """Build the embedding."""
        self.num_tokens = num_soft_tokens_of(cfg.embedding)
        self.embedding: Any = cfg.embedding.build(vocab_size=cfg.vocab_size, dim=cfg.dim)

    @property
    def weight(self) -> Float[Array, "vocab dim"]:
        """The token table, for a tied head."""
        table: Float[Array, "vocab dim"] = self.embedding.weight
        return table

    def forward(self, tokens: Int[Array, "B T"], info: TokenInfo) -> Float[Array, "B T dim"]:
        """Return the vectors of tokens, and send how far each sees."""
        places = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        if info.num_cached is not None:
            places = places + info.num_cached[:, None]
        left = self.num_tokens - (tokens - FIRST_SOFT_TOKEN) % self.num_tokens
        ends = places + jnp.where(tokens >= FIRST_SOFT_TOKEN, left, 1)
        self.set_shared(VISIBLE_ENDS, ends.astype(jnp.int32))
        vectors: Float[Array, "B T dim"] = self.embedding(tokens, info)
        return vectors

    @entry
    def store(self, soft: Float[Array, "n N dim"], slots: Int[Array, " n"]) -> None:
        """Keep the soft tokens of inputs; see `SoftTokenTable`."""
        self.embedding.store(soft, slots)


class WholeInputAttention(DotProductAttention):
    """Causal attention in which a soft token also sees those of its input behind it.

    A window bounds what a token sees to its left alone. Where the model serves, no call may end
    within an input: the scheduler sees to that. Slot protocol: the parent fills `num_heads`.

    Source: Gemma Team 2025, arXiv:2503.19786, section 2.1.
    """

    sees_whole_inputs = True

    @config
    class Config(DotProductAttention.Config):
        """The config of a `WholeInputAttention`; its fields are those of `DotProductAttention`."""

    def forward(
        self,
        q: Heads,
        k: Num[Array, "rows keys kv_heads head_dim"],
        v: Num[Array, "rows keys kv_heads value_dim"],
        info: TokenInfo,
        **options: Any,
    ) -> Float[Array, "batch time heads value_dim"]:
        """Return each query's weighted mean of values.

        Raises:
            ModuleError: The cache has gaps.
        """
        cfg, ends = self.config, self.get_shared(VISIBLE_ENDS)
        is_continued = info.num_cached is not None
        # One token that follows others is text: an input is read in one call.
        if ends is None or (is_continued and q.shape[1] == 1):
            return super().forward(q, k, v, info, **options)
        if info.key_mask is not None:
            raise ModuleError(
                "tokens of an input see each other, and a cache that skips tokens has gaps in them",
                hint="leave out the layers that skip tokens, or DotProductAttention in their place",
            )
        if is_continued:
            check_all_tokens(info)
            k, v = gather_keys(k, v, info, q.dtype)
            options["query_offset"] = info.num_cached
        else:
            options["segment_ids"] = info.segment_ids
        return attention(
            q,
            k,
            v,
            causal=False,
            window=(cfg.window[0] if cfg.window else None, None),
            key_ranges=(jnp.zeros_like(ends), ends),
            scale=cfg.scale,
            soft_cap=cfg.soft_cap,
            **options,
        )


def num_whole_tokens(cfg: Any) -> int:
    """Return how many soft tokens of an input one call of a model reads at least, where it serves.

    Args:
        cfg: Of any model; 0 where a call may end within an input.
    """
    if not find_config(cfg, WholeInputAttention):
        return 0
    return num_soft_tokens_of(cfg.decoder.embedding)
