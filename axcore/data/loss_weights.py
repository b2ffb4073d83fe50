"""What tokens weigh in a loss, within the tokens: what reads, cuts and packs has no second array.

Unsigned integers, as narrow as the vocabulary allows, weigh 1 each. Where some do not count, tokens
are signed, and one that does not is stored as `~token`. Where some weigh neither 0 nor 1, tokens
have 64 bits unsigned: the upper half is the weight, a float32.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

WEIGHTED: "np.dtype[Any]" = np.dtype("<u8")

_TOKEN = np.uint64(2**32 - 1)
_WIDTH = np.uint64(32)


def weigh_tokens(tokens_N: NDArray[Any], weights_N: NDArray[Any]) -> NDArray[Any]:
    """Returns tokens that say of each what it weighs, as narrow as the weights allow."""
    if np.isin(weights_N, (0, 1)).all():
        signed = tokens_N.astype(np.promote_types(tokens_N.dtype, np.int8))
        return np.where(weights_N != 0, signed, ~signed)
    return _weighted(tokens_N, np.ascontiguousarray(weights_N, np.float32))


def plain_tokens(tokens_N: NDArray[Any]) -> NDArray[Any]:
    """Returns tokens without what they say of the loss."""
    if is_weighted(tokens_N):
        return (tokens_N & _TOKEN).astype(np.uint32)
    if tokens_N.dtype.kind == "u":
        return tokens_N
    return np.where(tokens_N < 0, ~tokens_N, tokens_N)


def weights_of(tokens_N: NDArray[Any]) -> NDArray[np.float32]:
    """Returns what each token weighs in the loss."""
    if is_weighted(tokens_N):
        return (tokens_N >> _WIDTH).astype(np.uint32).view(np.float32)
    return (tokens_N >= 0).astype(np.float32)


def is_weighted(tokens_N: NDArray[Any]) -> bool:
    """Says whether tokens have weights of their own."""
    return tokens_N.dtype.kind == "u" and tokens_N.dtype.itemsize == WEIGHTED.itemsize


def join_tokens(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Returns tokens one after another, whichever way each says what they weigh."""
    if any(map(is_weighted, pieces)):
        pieces = [one if is_weighted(one) else _with_weights(one) for one in pieces]
    return np.concatenate(pieces)


def tokens_as(tokens_N: NDArray[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Returns tokens in the integers of a store, which are as wide as their weights need."""
    if dtype != WEIGHTED:
        assert not is_weighted(tokens_N), "there is no room for weights"
        return tokens_N.astype(dtype, copy=False)
    return tokens_N if is_weighted(tokens_N) else _with_weights(tokens_N)


def _with_weights(tokens_N: NDArray[Any]) -> NDArray[Any]:
    return _weighted(plain_tokens(tokens_N), weights_of(tokens_N))


def _weighted(tokens_N: NDArray[Any], weights_N: NDArray[np.float32]) -> NDArray[Any]:
    upper: NDArray[Any] = weights_N.view(np.uint32).astype(WEIGHTED) << _WIDTH
    upper |= tokens_N.astype(WEIGHTED)
    return upper


def token_dtype(vocab_size: int, *, is_masked: bool) -> "np.dtype[Any]":
    """Returns the narrowest integers that hold a vocabulary, or its masked tokens too."""
    return np.min_scalar_type(-vocab_size if is_masked else vocab_size - 1)
