"""Batches of a stream: documents end to end, cut where a row ends, in the stream's own order."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.data.batches import DataShard
from axcore.data.corpus import encode_documents
from axcore.data.packing import Batch, PackedRows, Pairs
from axcore.data.split import is_validation
from axcore.data.stream import Place, Stream
from axcore.data.tokenizer import Tokenizer
from axcore.errors import DataError

_DOCUMENTS_AT_ONCE = 16

_MOST_UNUSED = 100_000
"""Documents on end that may give no row, before it is an error: a stream need not have an end."""


@attrs.frozen
class StreamReading:
    """How a stream becomes rows.

    Attributes:
        stream: The documents.
        tokenizer: What makes tokens of them.
        shard: Which rows of each batch this process has.
        seq_len: Pairs of a row.
        masks_documents: Whether attention is kept within documents.
        validation_fraction: The share of the documents that is left out.
    """

    stream: Stream
    tokenizer: Tokenizer
    shard: DataShard
    seq_len: int
    masks_documents: bool
    validation_fraction: float

    def __iter__(self) -> "StreamIterator":
        return StreamIterator(self)


class StreamIterator(Iterator[Batch]):
    """Batches from a place on.

    The position is the place before the document that the next row begins with, and the pairs of it
    that were read: as large for the first batch as for the millionth.
    """

    _state: dict[str, Any]
    _used: int

    def __init__(self, reading: StreamReading) -> None:
        self._reading = reading
        self.set_state({"next_index": 0, "place": None, "pairs": 0})

    def __next__(self) -> Batch:
        try:
            rows = [self._row() for _ in range(self._reading.shard.batch_size)]
        except BaseException:
            self.set_state(self._state)  # half a batch is none
            raise
        step = self._state["next_index"]
        place = self._waiting[0][0] if self._waiting else self._after
        self._state = {"next_index": step + 1, "place": place, "pairs": self._used}
        packed = PackedRows(
            _ReadRows(rows),
            seq_len=self._reading.seq_len,
            pad_id=self._reading.tokenizer.pad_id,
            masks_documents=self._reading.masks_documents,
        )
        return packed.batch([place % len(rows) for place in self._reading.shard.places(step)])

    def get_state(self) -> dict[str, Any]:
        """Returns the position after the batches that were taken."""
        return dict(self._state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position."""
        self._state = {name: state[name] for name in ("next_index", "place", "pairs")}
        self._after: Place = self._state["place"]
        self._used = int(self._state["pairs"])
        self._waiting: deque[tuple[Place, NDArray[Any]]] = deque()
        reading = self._reading
        self._documents = reading.stream.documents(self._after, reading.tokenizer)

    def _row(self) -> Pairs:
        pieces, left = [], self._reading.seq_len
        while left:
            tokens = self._document()
            size = min(left, len(tokens) - 1 - self._used)
            pieces.append(Pairs(tokens[self._used : self._used + size + 1], np.array([size])))
            self._used += size
            left -= size
            if self._used == len(tokens) - 1:
                self._waiting.popleft()
                self._used = 0
        return Pairs.joined(pieces)

    def _document(self) -> NDArray[Any]:
        """Returns the document that is being read."""
        num_unused = 0
        while not self._waiting:
            self._read_on()
            num_unused += _DOCUMENTS_AT_ONCE
            if num_unused > _MOST_UNUSED and not self._waiting:
                raise DataError(
                    f"{_MOST_UNUSED:,} documents on end gave no row: "
                    f"{self._reading.stream.describe()}; each is held out for validation, or has "
                    "no two tokens.",
                    hint="Look at the documents and at data.validation_fraction.",
                )
        return self._waiting[0][1]

    def _read_on(self) -> None:
        reading = self._reading
        found = list(islice(self._documents, _DOCUMENTS_AT_ONCE))
        if not found:
            raise DataError(
                f"The stream ended before step {self._state['next_index'] + 1}: "
                f"{reading.stream.describe()}.",
                hint="Lower max_steps, or let the stream begin again (max_epochs).",
            )
        encoded = encode_documents([document for document, _ in found], reading.tokenizer)
        for (document, after), tokens in zip(found, encoded, strict=True):
            is_held = is_validation(document.name, reading.validation_fraction)
            if len(tokens) > 1 and not is_held:
                self._waiting.append((self._after, tokens))
            self._after = after


@attrs.frozen
class _ReadRows:
    """The rows of a batch, as a layout."""

    rows: Sequence[Pairs]

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self, row: int, /) -> Pairs:
        return self.rows[row]
