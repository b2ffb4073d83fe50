"""Documents packed into rows of equal length, each row computed from its number alone.

Documents of n tokens give n - 1 pairs of (token, next token). By default the pairs of all
documents, one after another, are cut every `seq_len` pairs; only the last row is padded. A long
document continues in the next row, where its piece counts as a segment of its own, because
attention does not reach back over the edge of a row. `row_layout` has other layouts.

What tokens weigh in the loss is stored within the tokens, so that nothing that reads, cuts and
packs them needs a second array. Unsigned integers, as narrow as the vocabulary allows, weigh 1
each. Where some do not count, tokens are signed, and one that does not is stored as `~token`. Where
some weigh neither 0 nor 1, tokens have 64 bits unsigned: the upper half is the weight, a float32.

Shape letters: D documents, N tokens of all documents, B rows, T pairs a row.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.module import ArraySpec, BatchSpec

Batch = dict[str, NDArray[Any]]

# A row's number is 0 or more, so this is none.
PADDING_ROW = -1


WEIGHTED: "np.dtype[Any]" = np.dtype("<u8")
_TOKEN = np.uint64(2**32 - 1)
_WIDTH = np.uint64(32)


@attrs.frozen(eq=False)
class Pairs:
    """Consecutive pairs, as the tokens that hold them and the documents that they fall on.

    Attributes:
        tokens: [n + d] tokens of n pairs of d documents: of each document one more than its pairs.
        counts: [d] pairs of each document, in order.
    """

    tokens: NDArray[Any]
    counts: NDArray[np.int64]

    @classmethod
    def joined(cls, pieces: Sequence["Pairs"]) -> "Pairs":
        """Return pieces one after another."""
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            join_tokens([piece.tokens for piece in pieces]),
            np.concatenate([piece.counts for piece in pieces]),
        )


class TokenReader(Protocol):
    """All documents of a split, wherever they are stored."""

    @property
    def num_documents(self) -> int:
        """D."""

    @property
    def num_tokens(self) -> int:
        """N."""

    @property
    def digest(self) -> str:
        """A short hash of every token and every boundary."""

    def read(self, begin: int, end: int) -> Pairs:
        """Return the pairs from number `begin` to before `end`, at least one."""

    def first_pairs(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many pairs come before each of some documents; D counts as one after all."""

    def tokens_of(self, document: int, begin: int, end: int) -> NDArray[Any]:
        """Return tokens of a document, from number `begin` of all tokens to before `end`."""

    def lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, in order, many at a time."""


class RowLayout(Protocol):
    """Which pairs are in which row."""

    def __len__(self) -> int: ...

    def pairs(self, row: int, /) -> Pairs:
        """Return the pairs of a row, at most as many as a row takes.

        Args:
            row: From 0; where rows of each epoch are packed again, row `epoch * len(self) + n` is
                row n of an epoch.
        """


def read_pairs(
    tokens_N: NDArray[Any], first_pair: NDArray[np.int64], begin: int, end: int
) -> Pairs:
    """Return the pairs from number `begin` to before `end` of documents stored end to end.

    Args:
        tokens_N: Their tokens.
        first_pair: [D + 1] the number of each document's first pair, then the number of all pairs.
            Pair p of document i begins at token p + i: every earlier document has one token more
            than it has pairs.
        begin: The first pair.
        end: One after the last pair.
    """
    first = int(np.searchsorted(first_pair, begin, side="right")) - 1
    last = int(np.searchsorted(first_pair, end, side="left"))
    edges = np.array(first_pair[first : last + 1])
    edges[0], edges[-1] = begin, end
    return Pairs(tokens_N[begin + first : end + last], edges[1:] - edges[:-1])


@attrs.frozen(eq=False, slots=False)
class TokenStore:
    """All documents of a split in memory, end to end.

    Attributes:
        tokens: [N] integers; see `axcore.data.packing.packing`.
        starts: [D + 1] int64; document i is `tokens[starts[i] : starts[i + 1]]`. Every document
            has two tokens or more.
    """

    tokens: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, documents: Iterable[NDArray[Any]]) -> "TokenStore":
        """Store the documents that have something to predict.

        One of a single token has not and is left out: that is an empty text, whose only token is
        the end of the document.
        """
        stored = [tokens for tokens in documents if len(tokens) > 1]
        starts = np.zeros(len(stored) + 1, np.int64)
        np.cumsum([len(tokens) for tokens in stored], out=starts[1:])
        # An empty array needs a dtype, and the narrowest promotes to any other.
        return cls(join_tokens(stored) if stored else np.zeros(0, np.uint8), starts)

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

    def read(self, begin: int, end: int) -> Pairs:
        """Return the pairs from number `begin` to before `end`."""
        return read_pairs(self.tokens, self._first_pair, begin, end)

    def first_pairs(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many pairs come before each of some documents; D counts as one after all."""
        return self._first_pair[documents]

    def tokens_of(self, document: int, begin: int, end: int) -> NDArray[Any]:
        """Return tokens of a document, from number `begin` of all tokens to before `end`."""
        return self.tokens[begin:end]

    def lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, [D]."""
        yield np.diff(self.starts)

    @cached_property
    def _first_pair(self) -> NDArray[np.int64]:
        # A document has one pair fewer than tokens, so i documents before it shift by i.
        return self.starts - np.arange(len(self.starts))


class PackedRows:
    """Rows of pairs as arrays: any of them can be computed at any time.

    In one pass over the rows, every document's first token and then all its targets, in order, are
    the document: nothing is lost, nothing comes twice.
    """

    DTYPES = {
        "tokens": "int32",
        "targets": "int32",
        "segment_ids": "int32",
        "token_mask": "bool",
        "positions": "int32",
        "loss_weights": "float32",
    }
    """The arrays of a batch, all [B, T]; `segment_ids` only where documents are masked, and
    `token_mask` only where they are not."""

    @classmethod
    def dtypes(cls, masks_documents: bool) -> dict[str, str]:
        """Return the dtype of each array of a batch."""
        left_out = "token_mask" if masks_documents else "segment_ids"
        return {name: dtype for name, dtype in cls.DTYPES.items() if name != left_out}

    def __init__(
        self, layout: RowLayout, *, seq_len: int, pad_id: int, masks_documents: bool = True
    ) -> None:
        self.seq_len = seq_len
        self._layout = layout
        self._masks_documents = masks_documents
        self._pad_id = pad_id

    def __len__(self) -> int:
        return len(self._layout)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the rows of those numbers; PADDING_ROW is one with nothing in it.

        Returns:
            `tokens` and `targets`, [B, T] int32: a token, and the one that follows it in the same
            document. `segment_ids`, [B, T] int32: 1 for a row's first document, 2 for the next,
            ..., 0 for padding. `positions`, [B, T] int32: 0, 1, ... from where a segment begins.
            `loss_weights`, [B, T] float32: 0 for padding, and otherwise 1 or what a transform says
            that a token weighs. Where documents are not masked, a row is one segment: positions
            count the row, and instead of `segment_ids` there is `token_mask`, [B, T] bool: False
            for padding.
        """
        batch = self._padding(len(rows))
        for place, row in enumerate(rows):
            # Rows of padding stay as they were made.
            if row != PADDING_ROW:
                arrays = {name: array[place] for name, array in batch.items()}
                self._fill(arrays, self._layout.pairs(int(row)))
        return batch

    def _padding(self, num_rows: int) -> Batch:
        fill = {"tokens": self._pad_id, "targets": self._pad_id}
        return {
            name: np.full((num_rows, self.seq_len), fill.get(name, 0), dtype)
            for name, dtype in self.dtypes(self._masks_documents).items()
        }

    def _fill(self, row: Batch, pairs: Pairs) -> None:
        """Write pairs to the beginning of a row's arrays, all [T]."""
        document_n = np.repeat(np.arange(len(pairs.counts)), pairs.counts)
        place_n = np.arange(len(document_n))
        here = slice(len(document_n))
        # A document has one token more than it has pairs, so pair p of document d begins at token p
        # + d.
        targets = pairs.tokens[place_n + document_n + 1]
        row["tokens"][here] = plain_tokens(pairs.tokens[place_n + document_n])
        row["targets"][here] = plain_tokens(targets)
        row["loss_weights"][here] = weights_of(targets)
        row["positions"][here] = place_n
        if self._masks_documents:
            row["segment_ids"][here] = document_n + 1
            begin_d = np.cumsum(pairs.counts) - pairs.counts
            row["positions"][here] -= begin_d[document_n].astype(np.int32)
        else:
            row["token_mask"][here] = True


class _PackedShape(Protocol):
    """What decides the arrays of a batch of packed rows."""

    @property
    def batch_size(self) -> int: ...

    @property
    def seq_len(self) -> int: ...

    @property
    def masks_documents(self) -> bool: ...


def packed_batch_spec(cfg: _PackedShape, vocab_size: int) -> BatchSpec:
    """Return the arrays of `[batch, time]` that `PackedRows.batch` makes."""
    num_values = dict.fromkeys(("tokens", "targets"), vocab_size)
    return BatchSpec(
        arrays={
            name: ArraySpec(
                shape=(cfg.batch_size, cfg.seq_len),
                axes=("batch", "time"),
                dtype=dtype,
                num_values=num_values.get(name),
            )
            for name, dtype in PackedRows.dtypes(cfg.masks_documents).items()
        },
        unit="token",
        num_units=cfg.batch_size * cfg.seq_len,
        sized_by={"batch": "batch_size", "time": "seq_len"},
    )


def weigh_tokens(tokens_N: NDArray[Any], weights_N: NDArray[Any]) -> NDArray[Any]:
    """Return tokens that say about each what it weighs, as narrow as the weights allow."""
    # The sign says whether a token counts: no width is lost for the usual case of weights 0 and 1.
    if np.isin(weights_N, (0, 1)).all():
        signed = tokens_N.astype(np.promote_types(tokens_N.dtype, np.int8))
        return np.where(weights_N != 0, signed, ~signed)
    return _weighted(tokens_N, np.ascontiguousarray(weights_N, np.float32))


def plain_tokens(tokens_N: NDArray[Any]) -> NDArray[Any]:
    """Return tokens without what they say about the loss."""
    # Which of the three forms it is shows in the dtype alone.
    if is_weighted(tokens_N):
        return (tokens_N & _TOKEN).astype(np.uint32)
    if tokens_N.dtype.kind == "u":
        return tokens_N
    return np.where(tokens_N < 0, ~tokens_N, tokens_N)


def weights_of(tokens_N: NDArray[Any]) -> NDArray[np.float32]:
    """Return what each token weighs in the loss."""
    if is_weighted(tokens_N):
        return (tokens_N >> _WIDTH).astype(np.uint32).view(np.float32)
    return (tokens_N >= 0).astype(np.float32)


def is_weighted(tokens_N: NDArray[Any]) -> bool:
    """Return whether tokens have weights of their own."""
    return tokens_N.dtype.kind == "u" and tokens_N.dtype.itemsize == WEIGHTED.itemsize


def join_tokens(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return tokens one after another, whichever way each says what they weigh."""
    if any(map(is_weighted, pieces)):
        pieces = [one if is_weighted(one) else _with_weights(one) for one in pieces]
    return np.concatenate(pieces)


def tokens_as(tokens_N: NDArray[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return tokens in the integers of a store, which are as wide as their weights need."""
    if dtype != WEIGHTED:
        assert not is_weighted(tokens_N), "these tokens cannot hold weights"
        return tokens_N.astype(dtype, copy=False)
    return tokens_N if is_weighted(tokens_N) else _with_weights(tokens_N)


def _with_weights(tokens_N: NDArray[Any]) -> NDArray[Any]:
    return _weighted(plain_tokens(tokens_N), weights_of(tokens_N))


def _weighted(tokens_N: NDArray[Any], weights_N: NDArray[np.float32]) -> NDArray[Any]:
    upper: NDArray[Any] = weights_N.view(np.uint32).astype(WEIGHTED) << _WIDTH
    # The weight's own bits in the upper half: it comes back exactly.
    upper |= tokens_N.astype(WEIGHTED)
    return upper


def token_dtype(vocab_size: int, *, is_masked: bool) -> "np.dtype[Any]":
    """Return the narrowest integers that hold a vocabulary, or its masked tokens too."""
    # A token t that does not count is stored as ~t, so -vocab_size is the smallest number.
    return np.min_scalar_type(-vocab_size if is_masked else vocab_size - 1)
