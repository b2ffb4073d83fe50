"""`Stream`: documents without an end or a length, read from a place that a checkpoint can hold."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from axcore.config import REQUIRED, Configurable, PositiveInt, config
from axcore.data.document import Document
from axcore.data.file_source import FileSource, FileSpan, Tally
from axcore.data.files import warn_skipped
from axcore.data.tokenizer import Tokenizer
from axcore.errors import ConfigError

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

    A place is the epoch, the file of it, and the records that were read of that. Files are in
    another order each epoch; documents within them are not.
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
        """Yields the documents of file after file."""
        first_epoch, first_file, first_record = place or (0, 0, 0)
        for epoch in count(first_epoch):
            if epoch == self.config.max_epochs:
                return
            files = self.source.files()
            for number in range(first_file, len(files)):
                file = files[self._order(epoch, len(files))[number]]
                tally = Tally(self.source, tokenizer)
                for document in tally.documents(self.source.read(FileSpan(file)), file):
                    if tally.num_records > first_record:
                        yield document, [epoch, number, tally.num_records]
                tally.check()
                if tally.bad:
                    whole = f"of {tally.num_records} {self.source.unit} of {file.name}"
                    warn_skipped(len(tally.bad), whole, tally.bad[0].error)
                first_record = 0
            first_file = 0

    def describe(self) -> str:
        """Names the source."""
        return f"stream of {self.source.describe()}"

    def _order(self, epoch: int, num_files: int) -> list[int]:
        if not self.config.shuffles_files:
            return list(range(num_files))
        rng = np.random.default_rng([self.config.seed & 0xFFFFFFFF, epoch])
        order: list[int] = rng.permutation(num_files).tolist()
        return order
