"""Which tokens a loss counts, within the tokens: one that it does not count is stored as `~token`.

Tokens that all count are unsigned, as narrow as the vocabulary allows. Where some do not, they are
signed, so that what reads, cuts and packs tokens has no second array to keep in step.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mask_tokens(tokens_N: NDArray[Any], counts_N: NDArray[np.bool_]) -> NDArray[Any]:
    """Returns tokens that say of each whether the loss counts it."""
    signed = tokens_N.astype(np.promote_types(tokens_N.dtype, np.int8))
    return np.where(counts_N, signed, ~signed)


def plain_tokens(tokens_N: NDArray[Any]) -> NDArray[Any]:
    """Returns tokens without what they say of the loss."""
    if tokens_N.dtype.kind == "u":
        return tokens_N
    return np.where(tokens_N < 0, ~tokens_N, tokens_N)


def token_dtype(vocab_size: int, *, is_masked: bool) -> "np.dtype[Any]":
    """Returns the narrowest integers that hold a vocabulary, or its masked tokens too."""
    return np.min_scalar_type(-vocab_size if is_masked else vocab_size - 1)
