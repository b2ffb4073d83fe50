"""Documents packed into rows of equal length, each row computed from its number alone.

Documents of n tokens give n - 1 pairs of (token, next token). The pairs of all documents, one
after another, are cut every `seq_len` pairs; only the last row is padded. A long document continues
in the next row, where its piece counts as a segment of its own, because attention does not reach
back over the edge of a row.

Shape letters: D documents, N tokens of all documents, B rows, T pairs a row.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

Batch = dict[str, NDArray[Any]]

PADDING_ROW = -1


@attrs.frozen(eq=False)
class TokenStore:
    """All documents of a split, end to end.

    Attributes:
        tokens: [N] unsigned integers, as narrow as the vocabulary allows.
        starts: [D + 1] int64; document i is `tokens[starts[i] : starts[i + 1]]`. Every document
            has two tokens or more.
    """

    tokens: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, documents: Iterable[NDArray[Any]]) -> "TokenStore":
        """Stores the documents that have something to predict.

        One of a single token has not and is not kept: that is an empty text, whose only token is
        the end of the document.
        """
        kept = [tokens for tokens in documents if len(tokens) > 1]
        starts = np.zeros(len(kept) + 1, np.int64)
        np.cumsum([len(tokens) for tokens in kept], out=starts[1:])
        return cls(np.concatenate(kept) if kept else np.zeros(0, np.uint8), starts)

    @property
    def num_documents(self) -> int:
        """D."""
        return len(self.starts) - 1

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.tokens)

    @property
    def digest(self) -> str:
        """A short hash of every token and every boundary: equal stores, equal digests."""
        digest = blake2b(digest_size=16)
        digest.update(self.starts.astype("<i8").tobytes())
        digest.update(self.tokens.astype(self.tokens.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()


class PackedRows:
    """The rows of a store: any of them can be computed at any time.

    In one pass over the rows, every document's first token and then all its targets, in order, are
    the document: nothing is lost, nothing comes twice.
    """

    DTYPES = {
        "tokens": "int32",
        "targets": "int32",
        "segment_ids": "int32",
        "positions": "int32",
        "loss_weights": "float32",
    }
    """The arrays of a batch, all [B, T]; `segment_ids` only where documents are masked."""

    def __init__(
        self, store: TokenStore, *, seq_len: int, pad_id: int, masks_documents: bool = True
    ) -> None:
        self.seq_len = seq_len
        self._masks_documents = masks_documents
        self._pad_id = pad_id
        self._tokens_N = store.tokens
        # Pair p of document i begins at token p + i: every earlier document has one token more
        # than it has pairs.
        self._first_pair = store.starts - np.arange(len(store.starts))
        self._num_pairs = int(self._first_pair[-1])

    def __len__(self) -> int:
        return -(-self._num_pairs // self.seq_len)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Returns the rows of those numbers; PADDING_ROW is one with nothing in it.

        Returns:
            `tokens` and `targets`, [B, T] int32: a token, and the one that follows it in the same
            document. `segment_ids`, [B, T] int32: 1 for a row's first document, 2 for the next,
            ..., 0 for padding. `positions`, [B, T] int32: 0, 1, ... from where a segment begins.
            `loss_weights`, [B, T] float32: 1, and 0 for padding. Where documents are not masked,
            a row is one segment: there are no `segment_ids`, and positions count the row.
        """
        row_B1 = np.asarray(rows, np.int64)[:, None]
        begin_B1 = row_B1 * self.seq_len
        pair_BT = begin_B1 + np.arange(self.seq_len)
        is_real_BT = (row_B1 != PADDING_ROW) & (pair_BT < self._num_pairs)
        pair_BT = np.where(is_real_BT, pair_BT, 0)
        document_BT = np.searchsorted(self._first_pair, pair_BT, side="right") - 1
        token_BT = pair_BT + document_BT
        segment_BT = document_BT - document_BT[:, :1] + 1
        segment_begin_BT = np.maximum(self._first_pair[document_BT], begin_B1)
        if not self._masks_documents:
            segment_begin_BT = begin_B1

        def filled(values_BT: NDArray[Any], padding: int = 0) -> NDArray[np.int32]:
            return np.where(is_real_BT, values_BT.astype(np.int32), np.int32(padding))

        segments = {"segment_ids": filled(segment_BT)} if self._masks_documents else {}
        return {
            "tokens": filled(self._tokens_N[token_BT], self._pad_id),
            "targets": filled(self._tokens_N[token_BT + 1], self._pad_id),
            "loss_weights": is_real_BT.astype(np.float32),
            **segments,
            "positions": filled(pair_BT - segment_begin_BT),
        }
