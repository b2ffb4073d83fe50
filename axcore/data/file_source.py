"""Sources that are files: read in parts, side by side, their bad records named and counted."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import attrs

from axcore.data.document import Document, Source
from axcore.data.files import NamedFile, warn_skipped
from axcore.data.local_copies import local_copies
from axcore.errors import DataError


@attrs.frozen
class FileSpan:
    """A file, or some records of one.

    Attributes:
        file: Which file.
        begin: Its first byte.
        end: The byte after its last one; None for the end of the file.
        first_record: The number of its first record, from 0.
    """

    file: NamedFile
    begin: int = 0
    end: int | None = None
    first_record: int = 0

    def __str__(self) -> str:
        whole = self.begin == 0 and self.end is None
        return self.file.name if whole else f"{self.file.name} from byte {self.begin}"


@attrs.frozen
class BadRecord:
    """A record that cannot be a document, and why.

    Attributes:
        file: Where it is.
        offset: Its first byte, or its row, in that file.
        error: What reading it alone would raise.
    """

    file: str
    offset: int
    error: DataError


class FileSource(Source):
    """A source whose documents are in files.

    Attributes:
        unit: What its records are called, many of them.
    """

    unit: ClassVar[str] = "files"

    @abstractmethod
    def files(self) -> Sequence[NamedFile]:
        """Returns the files, in the order in which documents come.

        Raises:
            DataError: There is none.
        """

    def read_with(self, file: NamedFile) -> tuple[NamedFile, ...]:
        """Returns other files without which a file cannot be read; none here."""
        return ()

    def spans(self, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
        """Yields a file in pieces that can be read one without the other; here as a whole.

        Args:
            file: Which file.
            size: Its bytes.
            target: About how many bytes a piece should have.
        """
        yield FileSpan(file)

    @abstractmethod
    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yields the documents of a file or of some of its lines, and what is none.

        Raises:
            DataError: The file as a whole cannot be read.
        """

    def read(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yields what `records` does, also of a remote file, of which a copy is made for it.

        Raises:
            DataError: The file as a whole cannot be read, or changed since it was listed.
        """
        with local_copies([span.file, *self.read_with(span.file)]):
            yield from self.records(span)

    @property
    @abstractmethod
    def max_bad_fraction(self) -> float:
        """The share of the records that may be bad and are left out; 0 where none may."""

    def documents(self) -> Iterator[Document]:
        """Yields every document of every file.

        Raises:
            DataError: A record is bad and none may be, or more are than may be.
        """
        tally = Tally(self)
        for file in self.files():
            yield from tally.documents(self.read(FileSpan(file)))
        tally.check()
        if tally.bad:
            warn_skipped(len(tally.bad), f"of {tally.num_records} {self.unit}", tally.bad[0].error)


class Tally:
    """The records of a source as they are read: documents pass, bad ones are kept and counted."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self.num_records = 0
        self.bad: list[BadRecord] = []

    def documents(self, records: Iterable[Document | BadRecord]) -> Iterator[Document]:
        """Yields the documents of records; a bad record is raised where none may be bad."""
        for record in records:
            self.num_records += 1
            if isinstance(record, Document):
                yield record
            elif self._source.max_bad_fraction == 0:
                raise record.error
            else:
                self.bad.append(record)

    def check(self) -> None:
        """Checks that no more records are bad than may be.

        Raises:
            DataError: More are.
        """
        errors = [record.error for record in self.bad[:1]]
        check_bad_records(self._source, self.num_records, len(self.bad), errors)


def check_bad_records(
    source: FileSource, num_records: int, num_bad: int, first: Sequence[DataError]
) -> None:
    """Checks that no more records of a source are bad than may be.

    Raises:
        DataError: More are; it names the first of them.
    """
    if num_bad <= source.max_bad_fraction * num_records:
        return
    raise DataError(
        f"{num_bad} of {num_records} {source.unit} are bad, and max_bad_fraction is "
        f"{source.max_bad_fraction}. The first: {first[0].what}",
        where=first[0].where,
        hint="Correct or remove them, or raise the source's max_bad_fraction.",
    )
