"""JSON lines as a source: one document a line, its text in one field."""

from collections.abc import Iterator
from json import JSONDecodeError
from typing import Any

import attrs

from axcore.config import REQUIRED, Fraction, PositiveInt, config
from axcore.config.json_files import BYTE_ORDER_MARK, parse_json
from axcore.data.compression import open_decompressed
from axcore.data.document import Document
from axcore.data.file_source import BadRecord, FileSource, FileSpan
from axcore.data.files import NamedFile, OnBad, explain_decoding, list_files
from axcore.data.line_spans import line_spans
from axcore.data.text_files import bad_fraction
from axcore.errors import DataError

_MIB = 1 << 20
_MARK = BYTE_ORDER_MARK.encode()


class JsonLines(FileSource):
    """The lines of the files of a folder that match a glob; empty lines are no documents.

    A document's name is `file:line`, so that lines added at the end of a file leave the split of
    the others as it was. Files of gzip and zstd are decompressed as they are read.
    """

    @config
    class Config(FileSource.Config):
        """Which files, and which field.

        Attributes:
            folder: Where to look, relative to the working directory.
            glob: Which files, relative to the folder; `**` matches any depth.
            field: The field of each line's object that holds the text.
            on_bad_line: Whether a line that does not parse or lacks the text is an error, or is
                skipped and counted in a warning.
            max_bad_fraction: The share of the lines that may be skipped; None for any share.
            max_line_mib: A line of more is bad; no more of it is held in memory.
        """

        folder: str = REQUIRED
        glob: str = "**/*.jsonl"
        field: str = "text"
        on_bad_line: OnBad = "error"
        max_bad_fraction: Fraction | None = None
        max_line_mib: PositiveInt = 64

    folder_fields = ("folder",)
    unit = "lines"

    def files(self) -> list[NamedFile]:
        """Returns the files of the folder, by name."""
        return list_files(self.config.folder, self.config.glob)

    def spans(self, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
        """Yields runs of lines; a compressed file is one."""
        return line_spans(file, size, target)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yields a document for each line."""
        for line in _read_lines(span, self.config.max_line_mib * _MIB):
            try:
                yield line.document(self)
            except DataError as error:
                yield BadRecord(line.file.name, line.offset, error)

    @property
    def max_bad_fraction(self) -> float:
        """The share of the lines that may be skipped."""
        return bad_fraction(self.config.on_bad_line, self.config.max_bad_fraction)

    def describe(self) -> str:
        """Names the folder, the glob and the field."""
        return f"JSON lines {self.config.folder}/{self.config.glob}, field {self.config.field!r}"


def _read_lines(span: FileSpan, limit: int) -> Iterator["_Line"]:
    """Yields the lines of a span that are not empty, of each at most `limit` bytes and one."""
    offset, number = span.begin, span.first_record + 1
    with open_decompressed(span.file) as stream:
        if span.begin:
            stream.seek(span.begin)
        while (span.end is None or offset < span.end) and (raw := stream.readline(limit + 1)):
            is_whole = len(raw) <= limit or raw.endswith(b"\n")
            if not (is_whole and _is_empty(raw)):
                yield _Line(span.file, number, offset, raw, is_whole)
            offset, number = offset + len(raw), number + 1
            while not is_whole and (rest := stream.readline(limit + 1)):
                offset, is_whole = offset + len(rest), rest.endswith(b"\n")


def _is_empty(raw: bytes) -> bool:
    line = raw.removeprefix(_MARK)
    return not line or line.isspace()


@attrs.frozen
class _Line:
    """A line of a file, or its beginning: its number from 1, the offset of its first byte."""

    file: NamedFile
    number: int
    offset: int
    raw: bytes
    is_whole: bool = True

    def document(self, source: JsonLines) -> Document:
        """Returns the document that the line is.

        Raises:
            DataError: Naming the file and the line, and what is wrong with it.
        """
        record = self._object()
        text = self._text(record, source.config.field) if source.needs_text else ""
        try:
            fields = source.fields_of(record)
        except KeyError as error:
            raise self._lacks(error.args[0], record) from error
        return Document(f"{self.file.name}:{self.number}", text, None, self.offset, fields)

    def _object(self) -> dict[str, Any]:
        if not self.is_whole:
            raise self._error(
                f"is longer than {len(self.raw) // _MIB} MiB",
                hint="Remove the line, raise the source's max_line_mib, or set on_bad_line='skip'.",
            )
        record = self._record()
        if not isinstance(record, dict):
            raise self._error(f"holds {_kind(record)}, not an object")
        return record

    def _lacks(self, field: str, record: dict[str, Any]) -> DataError:
        names = ", ".join(repr(name) for name in record) or "nothing"
        return self._error(
            f"has no field {field!r}; it has {names}",
            hint="Set the source's field to the one that holds the text.",
        )

    def _text(self, record: dict[str, Any], field: str) -> str:
        if field not in record:
            raise self._lacks(field, record)
        text = record[field]
        if not isinstance(text, str):
            raise self._error(f"field {field!r} holds {_kind(text)}, not a string")
        if not _is_unicode(text):
            raise self._error(f"field {field!r} holds half of a surrogate pair")
        return text

    def _record(self) -> object:
        try:
            return parse_json(self.raw.rstrip(b"\r\n"))
        except UnicodeDecodeError as error:
            raise self._error(f"is not UTF-8: {explain_decoding(error, self.offset)}") from error
        except JSONDecodeError as error:
            what = error.msg.removesuffix(" at")
            raise self._error(f"is not JSON: {what} at column {error.colno}") from error
        except ValueError as error:
            raise self._error(f"is not JSON that can be read: {error}") from error

    def _error(self, reason: str, hint: str | None = None) -> DataError:
        return DataError(
            f"{self.file.name}, line {self.number} {reason}.",
            where=f"{self.file.where}:{self.number}",
            hint=hint or "Correct or remove the line, or set on_bad_line='skip'.",
        )


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text; JSON can write `\\ud800`, which is no character."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", type(None): "null"}
    return kinds.get(type(value), f"the {type(value).__name__} {value!r}")
