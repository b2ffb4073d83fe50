"""`ChunkedAttention`: each token sees the tokens of its own chunk only."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from axcore.config import REQUIRED, config
from axcore.errors import ConfigError
from axcore.layers import DotProductAttention, TokenInfo
from axcore.module import Module
from axl_attention.wrapping import refuse_second


class ChunkedAttention(Module):
    """Attention within chunks of `chunk` tokens of a document, by whatever core is inside.

    A chunk is to the core inside what a document is: a segment. So every kernel that takes packed
    documents takes chunks too. In Llama 4 three layers of four are chunked.

    Source: Liu et al. 2018, arXiv:1801.10198, section 4.2 (local attention); `attention_chunk_size`
    of Llama 4's configs, Meta 2025. Slot protocol: the parent fills `num_heads`.
    """

    @config
    class Config(Module.Config["ChunkedAttention"]):
        """The config of a `ChunkedAttention`.

        Args:
            num_heads: Number of query heads.
            chunk: Tokens of a chunk; a document's last may have fewer.
            core: Weighs the values of a chunk.
        """

        num_heads: int = REQUIRED
        chunk: int = 1024
        core: Module.Config = DotProductAttention.Config()

    def setup(self, cfg: Config) -> None:
        """Build the core."""
        refuse_second(ChunkedAttention, cfg.core)
        if cfg.chunk < 1:
            raise ConfigError(f"chunk is {cfg.chunk}; a chunk has at least one token")
        self.core = cfg.core.build(num_heads=cfg.num_heads)

    def forward(self, q: Any, k: Any, v: Any, info: TokenInfo, **options: Any) -> Any:
        """Return each query's weighted mean of the values of its chunk."""
        chunk = self.config.chunk
        if info.num_cached is not None:
            first = info.positions // chunk * chunk
            return self.core(q, k, v, info, key_ranges=(first, first + chunk), **options)
        return self.core(q, k, v, info._replace(segment_ids=chunk_ids(info, chunk)), **options)


def chunk_ids(info: TokenInfo, chunk: int) -> Int[Array, "batch time"]:
    """Return segments that number the chunks of each row from 1 on; padding stays 0."""
    begins = (info.positions % chunk == 0).astype(jnp.int32)
    ids = jnp.cumsum(begins, axis=1) + 1
    return ids if info.segment_ids is None else jnp.where(info.segment_ids == 0, 0, ids)


def in_place_of(old: Any) -> ChunkedAttention.Config:
    """Return the config that takes the place of attention over whole documents."""
    return ChunkedAttention.Config(core=old)
