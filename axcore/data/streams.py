"""Streams: documents without an end or a length, read from a place that a checkpoint can hold.

`Stream` yields documents, each with the place after it. `StreamData` cuts them into batches, in the
stream's own order, and has the stream's place in the checkpoint.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import count, islice
from typing import Any, Self, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, Configurable, Fraction, PositiveInt, config, evolve, to_json
from axcore.data.data_loader import DataLoader, TrainBatches, ValidationBatches
from axcore.data.document import Document, is_validation
from axcore.data.packing.batches import DataShard
from axcore.data.packing.corpus import encode_documents
from axcore.data.packing.packing import Batch, PackedRows, Pairs, TokenStore, packed_batch_spec
from axcore.data.packing.row_layout import Concatenated
from axcore.data.sources.file_source import FileSource, FileSpan, Tally
from axcore.data.sources.files import NamedFile, warn_skipped
from axcore.data.sources.text_files import StandardLibrary
from axcore.data.store.manifest import tokenizer_digest
from axcore.data.tokenizers.tokenizer import ByteTokenizer, Tokenizer
from axcore.errors import ConfigError, DataError
from axcore.module import BatchSpec

Place: TypeAlias = Any
"""Where a stream is: small, JSON-able, of the stream's own making; None is its beginning."""


# Tokenizers are faster on several texts, and a slow stream must not hold up the first batch.
_DOCUMENTS_AT_ONCE = 16
_MAX_UNUSED = 100_000
"""Documents on end that may give no row, before it is an error: a stream need not have an end."""


class Stream(Configurable, ABC):
    """Documents one after another, which can be read again from any place."""

    @abstractmethod
    def documents(self, place: Place, tokenizer: Tokenizer) -> Iterator[tuple[Document, Place]]:
        """Yield documents from a place on, each with the place after it.

        What follows a place is the same each time, and in every process.

        Args:
            place: Where to begin; None for the beginning.
            tokenizer: What will make tokens of them.

        Raises:
            DataError: Something cannot be read.
        """

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words where the documents come from."""


class FileStream(Stream):
    """The documents of files as they are read, again and again: nothing is built or held.

    A place is the epoch, the file of it, the records that were read of that, a hash of the names
    and sizes of all files, and within a record of several documents how many of those were read.
    Files are in another order each epoch; documents within them are not. A folder may change
    between two epochs.
    """

    @config
    class Config(Stream.Config):
        """What to read.

        Attributes:
            source: Any source that is made of files, and its transforms.
            seed: Decides the order of files.
            shuffles_files: Whether they have another order each epoch, or that of their names.
            max_epochs: How often they are read at most; None for no end.
        """

        source: FileSource.Config = REQUIRED
        seed: int = 0
        shuffles_files: bool = True
        max_epochs: PositiveInt | None = None

    source: FileSource

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.source = cfg.source.build()
        if self.source.marks_duplicates:
            raise ConfigError(
                "a stream cannot find duplicates: it does not know what it read before",
                where="data.stream.source.transforms",
                hint="build a store, or take deduplicate out",
            )

    def documents(self, place: Place, tokenizer: Tokenizer) -> Iterator[tuple[Document, Place]]:
        """Yield the documents of file after file.

        Raises:
            DataError: A file cannot be read, files changed since the place was saved, or none of
                them holds a document.
        """
        # The fifth part is only there where a record has several
        # documents, and was not in positions of old runs.
        first_epoch, first_file, first_record, known, *parts = place or (0, 0, 0, None)
        first_part = parts[0] if parts else 0
        for epoch in count(first_epoch):
            if epoch == self.config.max_epochs:
                return
            # Listed again each epoch, as a folder may grow between two.
            files, num_found, dropped = self.source.files(), 0, Counter[str]()
            digest = _digest(files)
            self._check_unchanged(known, digest)
            for number in range(first_file, len(files)):
                file = files[self._order(epoch, len(files))[number]]
                last_record = part = 0
                for document, num_records in self._documents(file, tokenizer, dropped):
                    num_found += 1
                    part = part + 1 if num_records == last_record else 1
                    last_record = num_records
                    # A resumed file is read from its beginning, as few formats can be entered in
                    # the middle; documents before the place are skipped.
                    if (num_records - 1, part) >= (first_record, first_part + 1):
                        yield document, _place(epoch, number, num_records, digest, document, part)
                first_record = first_part = 0
            self.source.say_dropped(dropped)
            # Only if the full epoch was read here: after
            # a resume the rest of it may well hold none.
            if not num_found and not first_file:
                raise DataError(
                    f"{self.source.describe()} have no document, or transforms leave none.",
                    hint="Point the stream at text, or let its filters pass some.",
                )
            # The files of the next epoch may be others, so they
            # are only compared within the one that was resumed.
            first_file, known = 0, None

    def describe(self) -> str:
        """Name the source."""
        return f"stream of {self.source.describe()}"

    def _documents(
        self, file: NamedFile, tokenizer: Tokenizer, dropped: Counter[str]
    ) -> Iterator[tuple[Document, int]]:
        """Yield the documents of a file, each with how many of its records were read by then.

        What transforms leave out of it is added to `dropped`.
        """
        tally = Tally(self.source, tokenizer)
        for document in tally.documents(self.source.read(FileSpan(file)), file):
            yield document, tally.num_records
        dropped.update(tally.dropped)
        tally.check()
        if tally.bad:
            whole = f"of {tally.num_records} {self.source.unit} of {file.name}"
            warn_skipped(len(tally.bad), whole, tally.bad[0].error)

    def _check_unchanged(self, known: str | None, now: str) -> None:
        if known not in (None, now):
            raise DataError(
                f"The files of {self.source.describe()} are not those of the saved position: names "
                "or sizes changed, so that what followed cannot follow again.",
                hint="Put the files back as they were, or start a new run.",
            )

    def _order(self, epoch: int, num_files: int) -> list[int]:
        if not self.config.shuffles_files:
            return list(range(num_files))
        # numpy takes no negative seed.
        rng = np.random.default_rng([self.config.seed & 0xFFFFFFFF, epoch])
        order: list[int] = rng.permutation(num_files).tolist()
        return order


def _place(
    epoch: int, file: int, num_records: int, digest: str, document: Document, part: int
) -> Place:
    """Return the place after a document, which its record may not end with."""
    if document.num_left:
        return [epoch, file, num_records - 1, digest, part]
    return [epoch, file, num_records, digest]


def _digest(files: Sequence[NamedFile]) -> str:
    """Return a hash of names, sizes and versions; not of times, which copies do not share."""
    every = [(one.name, one.state()[0], one.remote and one.remote.version) for one in files]
    return blake2b(json.dumps(every).encode(), digest_size=8).hexdigest()


@attrs.frozen
class _StreamReading:
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

    def __init__(self, reading: _StreamReading) -> None:
        self._reading = reading
        self.set_state({"next_index": 0, "place": None, "pairs": 0})

    def __next__(self) -> Batch:
        try:
            # All rows of the global batch, since each process has to be at the same place
            # afterwards.
            rows = [self._row() for _ in range(self._reading.shard.batch_size)]
        except BaseException:
            # Back to where the batch began: some of its rows may be read already.
            self.set_state(self._state)  # half a batch is not a batch
            raise
        step = self._state["next_index"]
        place = self._waiting[0][0] if self._waiting else self._after
        self._state = {"next_index": step + 1, "place": place, "pairs": self._used}
        packed = PackedRows(
            _ReadRows(rows),
            seq_len=self._reading.seq_len,
            pad_id=self._reading.tokenizer.pad_id,
            # From here the iterator no longer reads a file, so all rows are arrays in memory.
            masks_documents=self._reading.masks_documents,
        )
        return packed.batch([place % len(rows) for place in self._reading.shard.places(step)])

    def get_state(self) -> dict[str, Any]:
        """Return the position after the batches that were taken."""
        return dict(self._state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a position."""
        self._state = {name: state[name] for name in ("next_index", "place", "pairs")}
        self._after: Place = self._state["place"]
        self._used = int(self._state["pairs"])
        self._waiting: deque[tuple[Place, NDArray[Any]]] = deque()
        reading = self._reading
        # The generator is made, and reads nothing before its first document is asked for.
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
        """Return the document that is being read."""
        num_unused = 0
        while not self._waiting:
            self._read_on()
            num_unused += _DOCUMENTS_AT_ONCE
            if num_unused > _MAX_UNUSED and not self._waiting:
                raise DataError(
                    f"{_MAX_UNUSED:,} documents on end gave no row: "
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
            # Documents of one token have no target.
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


class StreamData(DataLoader):
    """Batches of packed documents of a stream, in its own order.

    A run resumes exactly where it was, by any number of processes: each process reads the full
    stream, and takes its rows of every batch. Nothing is known of what comes: there are no epochs,
    rows are not shuffled, and documents are cut wherever a row ends.
    """

    @config
    class Config(DataLoader.Config):
        """What to read and how to batch it.

        Attributes:
            stream: Where documents come from.
            tokenizer: How text becomes tokens.
            seq_len: T, the tokens of a row.
            masks_documents: As that of `Data.Config`.
            validation_fraction: Share of the documents that is never trained on, in [0, 1).
            validation_scan: How many documents from the stream's beginning are looked at for those.
            validation_batches: How many batches an evaluation reads at most; None reads them all.
        """

        stream: Stream.Config = REQUIRED
        tokenizer: Tokenizer.Config = ByteTokenizer.Config()
        seq_len: PositiveInt = REQUIRED
        masks_documents: bool = True
        validation_fraction: Fraction = 0.0
        validation_scan: PositiveInt = 1000
        validation_batches: PositiveInt | None = None

        def for_shapes(self) -> Self:
            """Return a config that reads no file of the user's."""
            stream = FileStream.Config(source=StandardLibrary.Config())
            return evolve(self, stream=stream, tokenizer=ByteTokenizer.Config())

    tokenizer: Tokenizer
    stream: Stream

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.stream = cfg.stream.build()
        self.tokenizer = cfg.tokenizer.build()

    def batch_spec(self) -> BatchSpec:
        """Return the arrays of `[batch, time]` that `PackedRows.batch` makes."""
        return packed_batch_spec(self.config, self.tokenizer.vocab_size)

    def train(self, *, process_index: int = 0, process_count: int = 1) -> TrainBatches:
        """Return an iterator over one process's part of each global batch.

        Raises:
            DataError: The stream cannot be read, or ends.
            ConfigError: `process_count` does not divide `batch_size`.
        """
        cfg = self.config
        reading = _StreamReading(
            stream=self.stream,
            tokenizer=self.tokenizer,
            shard=DataShard(cfg.batch_size, process_index, process_count),
            seq_len=cfg.seq_len,
            masks_documents=cfg.masks_documents,
            validation_fraction=cfg.validation_fraction,
        )
        names = ("seq_len", "batch_size", "masks_documents", "validation_fraction")
        settings = {name: getattr(cfg, name) for name in names}
        tokenizer = tokenizer_digest(cfg.tokenizer)
        identity = {"stream": to_json(cfg.stream), "tokenizer": tokenizer, **settings}
        return TrainBatches(reading, identity)

    def validation(self, *, process_index: int = 0, process_count: int = 1) -> ValidationBatches:
        """Return batches of the documents held out among the first of the stream.

        Raises:
            DataError: None of them is, though a fraction is asked for.
        """
        cfg = self.config
        shard = DataShard(cfg.batch_size, process_index, process_count)
        rows = PackedRows(
            Concatenated(self._held_out, cfg.seq_len),
            seq_len=cfg.seq_len,
            pad_id=self.tokenizer.pad_id,
            masks_documents=cfg.masks_documents,
        )
        return ValidationBatches.of(rows, shard, max_batches=cfg.validation_batches)

    def summary(self) -> "StreamSummary":
        """Say what is read; there is nothing to count."""
        return StreamSummary(self.stream.describe())

    @cached_property
    def _held_out(self) -> TokenStore:
        cfg = self.config
        if not cfg.validation_fraction:
            return TokenStore.of([])
        read = self.stream.documents(None, self.tokenizer)
        documents = {
            one.name: one
            for one, _ in islice(read, cfg.validation_scan)
            if is_validation(one.name, cfg.validation_fraction)
        }
        if not documents:
            raise DataError(
                f"None of the first {cfg.validation_scan} documents is held out, and "
                f"validation_fraction is {cfg.validation_fraction}.",
                where="data.validation_scan",
                hint="Raise one of them, or set validation_fraction=0.",
            )
        return TokenStore.of(encode_documents(list(documents.values()), self.tokenizer))


@attrs.frozen
class StreamSummary:
    """What there is to train on.

    Attributes:
        source: Where documents come from.
    """

    source: str

    def __str__(self) -> str:
        return f"{self.source}: of no known length"
