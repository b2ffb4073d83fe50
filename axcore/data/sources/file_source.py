"""Sources that are files: read in parts in parallel, their bad records named and counted."""

import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import attrs

from axcore.config import REQUIRED, Fraction, config
from axcore.data.cache import local_copies
from axcore.data.document import Document, Source
from axcore.data.sources.files import NamedFile, OnBad, list_files, warn_skipped
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.data.transforms import Dropped, Transform
from axcore.data.transforms.filters import DUPLICATE
from axcore.data.transforms.transform import apply_all
from axcore.errors import ConfigError, DataError


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

    @config
    class Config(Source.Config):
        """What becomes of documents before they are tokens.

        Attributes:
            transforms: What changes documents or leaves them out, in this order.
        """

        transforms: tuple[Transform.Config, ...] = ()

    unit: ClassVar[str] = "files"

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        _check_limit(cfg)

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """What changes its documents."""
        return tuple(one.build() for one in self.config.transforms)

    @cached_property
    def needs_text(self) -> bool:
        """Whether a record without text is bad: not where a transform makes documents of others."""
        return not any(one.replaces_text for one in self.transforms)

    @cached_property
    def wanted_fields(self) -> tuple[str, ...]:
        """The fields of records that its transforms read."""
        return tuple({name: None for one in self.transforms for name in one.fields})

    @cached_property
    def optional_fields(self) -> tuple[str, ...]:
        """Further fields that its transforms read where a record has them."""
        found = {name: None for one in self.transforms for name in one.optional_fields}
        return tuple(name for name in found if name not in self.wanted_fields)

    @property
    def marks_duplicates(self) -> bool:
        """Whether documents have keys, and of those with equal ones the first alone stays."""
        return any(one.marks_duplicates for one in self.transforms)

    @property
    def makes_loss_mask(self) -> bool:
        """Whether the loss may count some tokens of a document only."""
        return any(one.makes_loss_mask for one in self.transforms)

    @property
    def makes_loss_weights(self) -> bool:
        """Whether a store keeps weights of tokens that are neither 0 nor 1."""
        return any(one.makes_loss_weights for one in self.transforms)

    def fields_of(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a record that transforms read.

        Raises:
            KeyError: The record lacks one.
        """
        wanted = {name: record[name] for name in self.wanted_fields}
        return wanted | {name: record[name] for name in self.optional_fields if name in record}

    @abstractmethod
    def files(self) -> Sequence[NamedFile]:
        """Return the files, in the order in which documents come.

        Raises:
            DataError: There is none.
        """

    def read_with(self, file: NamedFile) -> tuple[NamedFile, ...]:
        """Return other files without which a file cannot be read; none here."""
        return ()

    def spans(self, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
        """Yield a file in pieces that can be read one without the other; here as a whole.

        Args:
            file: Which file.
            size: Its bytes.
            target: About how many bytes a piece should have.
        """
        yield FileSpan(file)

    @abstractmethod
    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield the documents of a file or of some of its lines, and bad records.

        Raises:
            DataError: The file as a whole cannot be read.
        """

    def read(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield what `records` does, also of a remote file, of which a copy is made for it.

        Raises:
            DataError: The file as a whole cannot be read, or changed since it was listed.
        """
        # Held as long as the generator runs: the copy must not be removed between two records.
        with local_copies([span.file, *self.read_with(span.file)]):
            yield from self.records(span)

    @property
    @abstractmethod
    def max_bad_fraction(self) -> float:
        """The share of the records that may be bad and are left out; 0 where none may."""

    def documents(self) -> Iterator[Document]:
        """Yield every document of every file, before its transforms.

        Raises:
            DataError: A record is bad and none may be, or more are than may be.
        """
        yield from self._read_all(Tally(self))

    def transformed(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Yield every document as its transforms leave it, and says what they leave out.

        Raises:
            DataError: A record is bad and none may be, or more are than may be.
        """
        tally, seen = Tally(self, tokenizer), set()
        for document in self._read_all(tally):
            # Keys rather than texts: a set of all texts would hold the corpus in memory.
            if document.key is None or document.key not in seen:
                seen.add(document.key)
                yield document
            else:
                tally.dropped[DUPLICATE] += 1
        self.say_dropped(tally.dropped)
        if tally.num_split:
            print(
                f"data: {tally.num_split:,} of {tally.num_records:,} {self.unit} of "
                f"{self.describe()} are {tally.num_parts:,} documents, as transforms made several "
                "of each",
                file=sys.stderr,
            )

    def say_dropped(self, dropped: Mapping[str, int]) -> None:
        """Print how many documents transforms left out and why, if they left out any."""
        if dropped:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
            print(f"data: left out of {self.describe()}: {reasons}", file=sys.stderr)

    def _read_all(self, tally: "Tally") -> Iterator[Document]:
        for file in self.files():
            yield from tally.documents(self.read(FileSpan(file)), file)
        tally.check()
        if tally.bad:
            warn_skipped(len(tally.bad), f"of {tally.num_records} {self.unit}", tally.bad[0].error)


class Files(FileSource):
    """The files of a folder that match a glob; each subclass reads a format.

    Attributes:
        kind: What its files are called.
        has_bad_records: Whether one record can be bad by itself; of tokens a full file is.
    """

    @config
    class Config(FileSource.Config):
        """Which files, and what becomes of records that cannot be documents.

        Attributes:
            folder: Where to look, relative to the working directory; or a URL.
            glob: Which files, relative to the folder; `**` matches any depth.
            on_bad: Whether a record that cannot be a document is an error, or is skipped and
                counted in a warning.
            max_bad_fraction: The share of the records that may be skipped; None for any share.
        """

        folder: str = REQUIRED
        glob: str = "**/*"
        on_bad: OnBad = "error"
        max_bad_fraction: Fraction | None = None

    kind: ClassVar[str] = "files"
    has_bad_records: ClassVar[bool] = True
    folder_fields = ("folder",)

    def __init__(self, cfg: Config) -> None:
        if not self.has_bad_records and (cfg.on_bad, cfg.max_bad_fraction) != ("error", None):
            raise ConfigError(
                f"on_bad={cfg.on_bad!r}, max_bad_fraction={cfg.max_bad_fraction} would change "
                f"nothing: {self.kind} have no records that could be skipped",
                where="data.source",
                hint="leave both out",
            )
        super().__init__(cfg)

    def files(self) -> list[NamedFile]:
        """Return the files of the folder, by name."""
        return list_files(self.config.folder, self.config.glob)

    @property
    def max_bad_fraction(self) -> float:
        """The share of the records that may be skipped."""
        return bad_fraction(self.config.on_bad, self.config.max_bad_fraction)

    def describe(self) -> str:
        """Name the folder and the glob."""
        return f"{self.kind} {self.config.folder}/{self.config.glob}"


def _check_limit(cfg: Any) -> None:
    """Refuse a limit of what is skipped where nothing is skipped."""
    limit = getattr(cfg, "max_bad_fraction", None)  # not all sources have bad records
    if limit is not None and cfg.on_bad != "skip":
        raise ConfigError(
            f"max_bad_fraction is {limit}, and on_bad is {cfg.on_bad!r}: the first bad record is "
            "an error, whatever share is bad",
            where="data",
            hint=f"set on_bad='skip' too, or leave max_bad_fraction={limit} out",
        )


def bad_fraction(on_bad: OnBad, limit: float | None) -> float:
    """Return the share of records that may be bad, from how a config says it."""
    return 0.0 if on_bad == "error" else 1.0 if limit is None else limit


class Tally:
    """The records of a source as they are read: documents pass, others are counted.

    Attributes:
        num_records: All of them.
        bad: Those that cannot be documents.
        dropped: How many transforms left out, and why.
        num_split: Of how many transforms made several documents.
        num_parts: How many those are together.
    """

    def __init__(self, source: FileSource, tokenizer: Tokenizer | None = None) -> None:
        """Count what transforms make of documents, where there is a tokenizer for them."""
        self._source = source
        self._tokenizer = tokenizer
        self.num_records = 0
        self.bad: list[BadRecord] = []
        self.dropped: Counter[str] = Counter()
        self.num_split = self.num_parts = 0

    def documents(
        self, records: Iterable[Document | BadRecord], file: NamedFile
    ) -> Iterator[Document]:
        """Yield the documents of a file; a bad record is raised where none may be bad."""
        for record in records:
            self.num_records += 1
            made = self._transformed(record, file) if isinstance(record, Document) else record
            if isinstance(made, list):
                self.num_split += len(made) > 1
                self.num_parts += len(made) if len(made) > 1 else 0
                yield from made
            elif isinstance(made, Dropped):
                self.dropped[made.reason] += 1
            # At once, where none may be bad: to read on for hours and then fail helps nobody.
            elif self._source.max_bad_fraction == 0:
                raise made.error
            else:
                self.bad.append(made)

    def _transformed(
        self, document: Document, file: NamedFile
    ) -> list[Document] | Dropped | BadRecord:
        if self._tokenizer is None or not self._source.transforms:
            return [document]
        try:
            return apply_all(self._source.transforms, document, self._tokenizer)
        except DataError as error:
            return BadRecord(file.name, document.offset, error)

    def check(self) -> None:
        """Check that no more records are bad than may be.

        Raises:
            DataError: More are.
        """
        errors = [record.error for record in self.bad[:1]]
        check_bad_records(self._source, self.num_records, len(self.bad), errors)


def check_bad_records(
    source: FileSource, num_records: int, num_bad: int, first: Sequence[DataError]
) -> None:
    """Check that no more records of a source are bad than may be.

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


def document_or_bad(
    file: NamedFile, number: int, make: Callable[[], Document]
) -> Document | BadRecord:
    """Return the document of a record, or why there is none.

    Args:
        file: Where the record is.
        number: Of the record, from 0.
        make: Makes the document; a ValueError, a KeyError or a DataError of it says that the record
            is bad.
    """
    try:
        return make()
    except (ValueError, KeyError, DataError) as error:
        what = error.what if isinstance(error, DataError) else _said(error)
        said = DataError(
            f"Record {number} of {file.name} is bad: {what}.",
            where=f"{file.where}:{number}",
            hint="Correct or remove it, or set on_bad='skip'.",
        )
        return BadRecord(file.name, number, said)


def as_text(value: object, field: str) -> str:
    """Return a value that has to be text, or its UTF-8.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{field} is not UTF-8 at byte {error.start}") from error
    if not isinstance(value, str):
        raise ValueError(f"{field} contains {value!r:.40}, not text")
    value.encode("utf-8")  # half of a surrogate pair is a ValueError, too
    return value


def _said(error: Exception) -> str:
    return f"it has no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
