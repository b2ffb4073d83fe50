"""`Stream`: documents without an end or a length, read from a place that a checkpoint can hold."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from axcore.config import REQUIRED, Configurable, PositiveInt, config
from axcore.data.document import Document
from axcore.data.file_source import FileSource, FileSpan, Tally
from axcore.data.files import NamedFile, warn_skipped
from axcore.data.tokenizer import Tokenizer
from axcore.errors import ConfigError, DataError

Place: TypeAlias = Any
"""Where a stream is: small, JSON-able, of the stream's own making; None is its beginning."""


class Stream(Configurable, ABC):
    """Documents one after another, which can be read again from any place."""

    @abstractmethod
    def documents(self, place: Place, tokenizer: Tokenizer) -> Iterator[tuple[Document, Place]]:
        """Yields documents from a place on, each with the place after it.

        What follows a place is the same each time, and in every process.

        Args:
            place: Where to begin; None for the beginning.
            tokenizer: What will make tokens of them.

        Raises:
            DataError: Something cannot be read.
        """

    @abstractmethod
    def describe(self) -> str:
        """Says in a few words where the documents come from."""


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
        """Yields the documents of file after file.

        Raises:
            DataError: A file cannot be read, files changed since the place was saved, or none of
                them holds a document.
        """
        first_epoch, first_file, first_record, known, *parts = place or (0, 0, 0, None)
        first_part = parts[0] if parts else 0
        for epoch in count(first_epoch):
            if epoch == self.config.max_epochs:
                return
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
                    if (num_records - 1, part) >= (first_record, first_part + 1):
                        yield document, _place(epoch, number, num_records, digest, document, part)
                first_record = first_part = 0
            self.source.say_dropped(dropped)
            if not num_found and not first_file:
                raise DataError(
                    f"{self.source.describe()} hold no document, or transforms leave none.",
                    hint="Point the stream at text, or let its filters pass some.",
                )
            first_file, known = 0, None

    def describe(self) -> str:
        """Names the source."""
        return f"stream of {self.source.describe()}"

    def _documents(
        self, file: NamedFile, tokenizer: Tokenizer, dropped: Counter[str]
    ) -> Iterator[tuple[Document, int]]:
        """Yields the documents of a file, each with how many of its records were read by then.

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
        rng = np.random.default_rng([self.config.seed & 0xFFFFFFFF, epoch])
        order: list[int] = rng.permutation(num_files).tolist()
        return order


def _place(
    epoch: int, file: int, num_records: int, digest: str, document: Document, part: int
) -> Place:
    """Returns the place after a document, which its record may not end with."""
    if document.num_left:
        return [epoch, file, num_records - 1, digest, part]
    return [epoch, file, num_records, digest]


def _digest(files: Sequence[NamedFile]) -> str:
    """Returns a hash of names, sizes and versions; not of times, which copies do not share."""
    every = [(one.name, one.state()[0], one.remote and one.remote.version) for one in files]
    return blake2b(json.dumps(every).encode(), digest_size=8).hexdigest()
