"""Which tokens may be drawn, as packed bits: token t is bit `t % 32` of word `t // 32`.

Letters of shapes: B rows, V vocabulary, W words of 32 tokens.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from axcore.data import Tokenizer

WORD = 32
"""Tokens of a word."""


def packed_mask(allowed: Bool[np.ndarray, "*rows V"]) -> UInt32[np.ndarray, "*rows W"]:
    """Returns a mask as bits; tokens after the last are not allowed."""
    missing = -allowed.shape[-1] % WORD
    padded = np.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, missing)])
    packed = np.packbits(padded, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u4").astype(np.uint32)


def mask_logits(
    logits: Float[Array, "B V"], allowed: UInt32[Array, "B W"] | UInt32[Array, "1 W"]
) -> Float[Array, "B V"]:
    """Returns logits that are minus infinity where a token is not allowed."""
    bits = allowed[:, :, None] >> jnp.arange(WORD, dtype=jnp.uint32)[None, None, :]
    is_allowed = (bits & 1).astype(bool).reshape(allowed.shape[0], -1)[:, : logits.shape[1]]
    return jnp.where(is_allowed, logits, -jnp.inf)


def allowed_tokens(vocab_size: int, tokenizer: Tokenizer) -> UInt32[np.ndarray, "1 W"]:
    """Returns bits of the logits that are of tokens that text may have, or of its end."""
    allowed = np.zeros(vocab_size, bool)
    allowed[: tokenizer.vocab_size] = True
    for token in (tokenizer.bos_id, tokenizer.pad_id):
        if token is not None and token not in tokenizer.end_ids:
            allowed[token] = False
    return packed_mask(allowed[None])
