"""Recall of pairs: how often what belongs to a row is among the closest, of all rows there are.

Letters: N rows, D size of a vector, G distinct rows of what is compared.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

RANKS = (1, 5, 10)
"""How many of the closest count, as papers report them."""

_BLOCK = 1024
"""Queries whose scores are held at once."""

Vectors = NDArray[np.float32]


def recalls(
    first: Vectors, second: Vectors, compared: NDArray[np.generic], weights: NDArray[np.float32]
) -> dict[str, Mapping[int, float]]:
    """Return the share of rows by direction, `forward` and `backward`, and by rank.

    Forward, a row's first vector looks for its second one among those of distinct rows; backward,
    its second one for the first one of any row that is equal to it. Equal scores count as closer,
    so that vectors which are all the same find nothing. A rank is left out where there are no more
    candidates than it counts.

    Args:
        first: `[N, D]`.
        second: `[N, D]`.
        compared: What the second vector was made of, `[N, ...]`: rows in which it is equal are one
            candidate, and right for each other.
        weights: Of rows, `[N]`; those of 0 are neither queries nor candidates.

    Source: Karpathy and Fei-Fei 2015, arXiv:1412.2306, section 4.1.
    """
    is_real = weights > 0
    if not is_real.any():
        return {}
    first, second, weights = first[is_real], second[is_real], weights[is_real]
    places, groups = _distinct(compared[is_real])
    second = second[places]
    of_group = np.bincount(groups, weights)
    return {
        "forward": _shares(_forward_ranks(first, second, groups), weights, len(second)),
        "backward": _shares(_backward_ranks(first, second, groups), of_group, len(first)),
    }


def _distinct(rows: NDArray[np.generic]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first place of each distinct row, and which of them each row is."""
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
    whole = flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1])))[:, 0]
    _, places, groups = np.unique(whole, return_index=True, return_inverse=True)
    return places, groups.reshape(-1)


def _forward_ranks(first: Vectors, second: Vectors, groups: NDArray[np.intp]) -> NDArray[np.intp]:
    ranks = []
    for block in _blocks(len(first)):
        scores = first[block] @ second.T
        own = np.take_along_axis(scores, groups[block][:, None], axis=1)
        # Counted from behind: a score that is not a number is below nothing, and so is last.
        ranks.append(scores.shape[1] - np.sum(scores < own, axis=1))
    return np.concatenate(ranks)


def _backward_ranks(first: Vectors, second: Vectors, groups: NDArray[np.intp]) -> NDArray[np.intp]:
    ranks = []
    for block in _blocks(len(second)):
        scores = second[block] @ first.T
        is_right = groups[None, :] == np.arange(len(second))[block][:, None]
        best = np.max(np.where(is_right, scores, -np.inf), axis=1, keepdims=True)
        num_wrong = np.sum(~is_right, axis=1)
        ranks.append(1 + num_wrong - np.sum((scores < best) & ~is_right, axis=1))
    return np.concatenate(ranks)


def _shares(
    ranks: NDArray[np.intp], weights: NDArray[Any], num_candidates: int
) -> Mapping[int, float]:
    total = float(np.sum(weights))
    return {
        most: float(np.sum(weights[ranks <= most])) / total
        for most in RANKS
        if most < num_candidates
    }


def _blocks(size: int) -> Iterator[slice]:
    return (slice(begin, begin + _BLOCK) for begin in range(0, size, _BLOCK))
