"""How long the documents of a store are."""

from collections import Counter

import numpy as np

from axcore.data.store.reader import StoredTokens

_PERCENTILES = (10, 50, 90, 99)


def length_stats(split: StoredTokens) -> dict[str, float]:
    """Returns documents, tokens, and the mean, shortest and longest document with percentiles.

    All lengths are read, a shard at a time; percentiles are exact. Empty where there is none.
    """
    documents_of: Counter[int] = Counter()
    for lengths in split.lengths():
        found, counts = np.unique(lengths, return_counts=True)
        documents_of.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
    if not documents_of:
        return {}
    lengths = np.array(sorted(documents_of))
    up_to = np.cumsum([documents_of[int(length)] for length in lengths])
    wanted = [-(-int(up_to[-1]) * percent // 100) for percent in _PERCENTILES]
    return {
        "documents": split.num_documents,
        "tokens": split.num_tokens,
        "mean": split.num_tokens / split.num_documents,
        "shortest": int(lengths[0]),
        **{
            f"p{percent}": int(lengths[np.searchsorted(up_to, rank)])
            for percent, rank in zip(_PERCENTILES, wanted, strict=True)
        },
        "longest": int(lengths[-1]),
    }
