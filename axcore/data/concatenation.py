"""Rows cut out of documents that lie end to end, as they are stored or in a shuffled order."""

from functools import lru_cache

from axcore.data.document_order import DocumentOrder, DocumentShuffle
from axcore.data.packing import Pairs, TokenReader

_KEPT_EPOCHS = 2


class Concatenated:
    """Documents one after another, cut every `seq_len` pairs; only the last row is not full."""

    def __init__(
        self, store: TokenReader, seq_len: int, shuffle: DocumentShuffle | None = None
    ) -> None:
        """Cuts nothing yet.

        Args:
            store: The documents.
            seq_len: Pairs of a row.
            shuffle: What decides the order of documents; None for that of the store.
        """
        self._seq_len = seq_len
        self._num_pairs = store.num_tokens - store.num_documents
        self._order = lru_cache(_KEPT_EPOCHS)(
            lambda epoch: store if shuffle is None else DocumentOrder(store, shuffle.key(epoch))
        )

    def __len__(self) -> int:
        return -(-self._num_pairs // self._seq_len)

    def pairs(self, row: int, /) -> Pairs:
        """Returns the pairs of a row; rows beyond the last are those of the next epoch."""
        epoch, row = divmod(row, len(self))
        begin = row * self._seq_len
        return self._order(epoch).read(begin, min(begin + self._seq_len, self._num_pairs))
