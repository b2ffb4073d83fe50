"""JSON lines as sources: a line is a document, its text in one field, or a conversation.

A large file is cut at ends of lines, so that its pieces can be read in parallel.
"""

import glob
from collections.abc import Iterator
from functools import cached_property
from json import JSONDecodeError
from pathlib import Path
from typing import IO, Any

import attrs

from axcore.config import REQUIRED, Fraction, PositiveInt, config
from axcore.config.json_files import BYTE_ORDER_MARK, parse_json
from axcore.data.document import Document
from axcore.data.sources.file_source import BadRecord, Files, FileSource, FileSpan
from axcore.data.sources.files import (
    NamedFile,
    OnBad,
    explain_decoding,
    is_compressed,
    open_decompressed,
)
from axcore.data.sources.remote import is_remote
from axcore.data.transforms import ChatMessages, Transform
from axcore.errors import DataError

_MIB = 1 << 20
_MARK = BYTE_ORDER_MARK.encode()


_CHUNK = 1 << 22


class JsonLines(Files):
    """The lines of the files of a folder that match a glob; empty lines are not documents.

    A document's name is `file:line`, so that lines added at the end of a file leave the split of
    the others as it was. Files of gzip and zstd are decompressed as they are read.
    """

    @config
    class Config(Files.Config):
        """Which files, and which field.

        Attributes:
            glob: Which files, relative to the folder; `**` matches any depth.
            field: The field of each line's object that contains the text.
            max_line_mib: A line of more is bad; no more of it is held in memory.
        """

        glob: str = "**/*.jsonl"
        field: str = "text"
        max_line_mib: PositiveInt = 64

    unit = "lines"

    def spans(self, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
        """Yield runs of lines; a compressed file is one."""
        return _line_spans(file, size, target)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield a document for each line."""
        for line in _read_lines(span, self.config.max_line_mib * _MIB):
            try:
                yield line.document(self)
            except DataError as error:
                yield BadRecord(line.file.name, line.offset, error)

    def describe(self) -> str:
        """Name the folder, the glob and the field."""
        return f"JSON lines {self.config.folder}/{self.config.glob}, field {self.config.field!r}"


def read_json_lines(path: Path, *, max_line_mib: int = 64) -> Iterator["JsonLine"]:
    """Yield the lines of a file that are not empty, decompressed and not yet parsed.

    Args:
        path: The file; gzip and zstd too.
        max_line_mib: No more of a line is held in memory, and none that is longer is parsed.

    Raises:
        DataError: The file cannot be read, or not to its end.
    """
    yield from _read_lines(FileSpan(NamedFile(path.name, path)), max_line_mib * _MIB)


def _read_lines(span: FileSpan, limit: int) -> Iterator["JsonLine"]:
    """Yield the lines of a span that are not empty, of each at most `limit` bytes and one."""
    offset, number = span.begin, span.first_record + 1
    # `readline` with a limit: a file without line ends must not fill the memory.
    with open_decompressed(span.file) as stream:
        if span.begin:
            stream.seek(span.begin)
        while (span.end is None or offset < span.end) and (raw := stream.readline(limit + 1)):
            is_whole = len(raw) <= limit or raw.endswith(b"\n")
            if not (is_whole and _is_empty(raw)):
                yield JsonLine(span.file, number, offset, raw, is_whole)
            offset, number = offset + len(raw), number + 1
            while not is_whole and (rest := stream.readline(limit + 1)):
                offset, is_whole = offset + len(rest), rest.endswith(b"\n")


def _is_empty(raw: bytes) -> bool:
    line = raw.removeprefix(_MARK)
    return not line or line.isspace()


@attrs.frozen
class JsonLine:
    """A line of a file, or its beginning.

    Attributes:
        file: The file.
        number: Of the line, from 1.
        offset: Of its first byte, where the file is not compressed.
        raw: Its bytes with the line end.
        is_whole: Whether these are all.
    """

    file: NamedFile
    number: int
    offset: int
    raw: bytes
    is_whole: bool = True

    def document(self, source: JsonLines) -> Document:
        """Return the document that the line is.

        Raises:
            DataError: Naming the file and the line, and what is wrong with it.
        """
        record = self.parsed()
        text = self._text(record, source.config.field) if source.needs_text else ""
        try:
            fields = source.fields_of(record)
        except KeyError as error:
            raise self._lacks(error.args[0], record) from error
        return Document(f"{self.file.name}:{self.number}", text, None, self.offset, fields)

    def parsed(self) -> dict[str, Any]:
        """Return the object that the line holds.

        Raises:
            DataError: Naming the file and the line: it contains none, or is too long.
        """
        if not self.is_whole:
            raise self._error(
                f"is longer than {len(self.raw) // _MIB} MiB",
                hint="Remove the line, raise the source's max_line_mib, or set on_bad='skip'.",
            )
        record = self._record()
        if not isinstance(record, dict):
            raise self._error(f"contains {_kind(record)}, not an object")
        return record

    def _lacks(self, field: str, record: dict[str, Any]) -> DataError:
        names = ", ".join(repr(name) for name in record) or "nothing"
        return self._error(
            f"has no field {field!r}; it has {names}",
            hint="Set the source's field to the one that contains the text.",
        )

    def _text(self, record: dict[str, Any], field: str) -> str:
        if field not in record:
            raise self._lacks(field, record)
        text = record[field]
        if not isinstance(text, str):
            raise self._error(f"field {field!r} contains {_kind(text)}, not a string")
        if not _is_unicode(text):
            raise self._error(f"field {field!r} contains half of a surrogate pair")
        return text

    def _record(self) -> object:
        try:
            # Not `strip`: it would take away characters of bad
            # JSON, and the column in the error would be off.
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
            hint=hint or "Correct or remove the line, or set on_bad='skip'.",
        )


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text; JSON can write `\\ud800`, which is not a character."""
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


class ChatFiles(FileSource):
    """The conversations of a file of JSON lines, or of all such files of a folder.

    It is `JsonLines` with a transform that makes documents of what lines hold.
    """

    @config
    class Config(FileSource.Config):
        """Which conversations, and what is made of them.

        Attributes:
            path: A file, or a folder whose `.jsonl` files are read.
            reads: What makes a document of a line: `ChatMessages` of a conversation, `ChatPairs` of
                one with two ends, `LabelledChats` of one with a label.
            on_bad: Whether a line that is not a conversation, or that the chat template refuses,
                is an error, or is left out and named.
            max_bad_fraction: The share of the lines that may be left out; None for any share.
            max_line_mib: A line of more is bad; no more of it is held in memory.
        """

        path: str = REQUIRED
        reads: Transform.Config = ChatMessages.Config()
        on_bad: OnBad = "error"
        max_bad_fraction: Fraction | None = None
        max_line_mib: PositiveInt = 64

    folder_fields = ("path",)
    unit = "lines"

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """What makes documents of conversations, and then what changes those."""
        return self._lines.transforms

    def files(self) -> list[NamedFile]:
        """Return the file, or those of the folder by name."""
        return self._lines.files()

    def spans(self, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
        """Yield runs of lines; a compressed file is one."""
        return self._lines.spans(file, size, target)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield a document for each line, of which `transforms` make the conversation."""
        return self._lines.records(span)

    @property
    def max_bad_fraction(self) -> float:
        """The share of the lines that may be left out."""
        return self._lines.max_bad_fraction

    def describe(self) -> str:
        """Name the path."""
        return f"conversations of {self.config.path}"

    @cached_property
    def _lines(self) -> JsonLines:
        cfg = self.config
        folder, pattern = _folder_and_glob(cfg.path)
        lines: JsonLines = JsonLines.Config(
            folder=folder,
            glob=pattern,
            on_bad=cfg.on_bad,
            max_bad_fraction=cfg.max_bad_fraction,
            max_line_mib=cfg.max_line_mib,
            transforms=(cfg.reads, *cfg.transforms),
        ).build()
        return lines


def _folder_and_glob(path: str) -> tuple[str, str]:
    """Return a folder and what to read there, of a path that may be a file."""
    if is_remote(path):
        folder, _, name = path.rpartition("/")
        return (folder, name) if "." in name else (path, "**/*.jsonl")
    local = Path(path).expanduser()
    if local.is_dir():
        return path, "**/*.jsonl"
    return str(local.parent), glob.escape(local.name)


def _line_spans(file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
    """Yield runs of lines of about `target` bytes; a larger file is read once, to count lines.

    A compressed file is one run: it can only be read from its beginning.
    """
    if size < 2 * target or is_compressed(file):
        yield FileSpan(file)
        return
    begin = num_lines = 0
    with file.path.open("rb") as stream:
        # Pieces have at least `target` bytes, so that the last one is not tiny.
        while begin + 2 * target <= size:
            end, lines = _skip_lines(stream, target)
            if end >= size:
                break
            yield FileSpan(file, begin, end, num_lines)
            begin, num_lines = end, num_lines + lines
    yield FileSpan(file, begin, None, num_lines)


def _skip_lines(stream: IO[bytes], target: int) -> tuple[int, int]:
    """Skip about `target` bytes, to the end of a line; returns the place, and the lines."""
    # By bytes, without decoding or parsing: counting lines is all that the plan needs.
    lines, chunk = 0, b""
    while target > 0 and (chunk := stream.read(min(target, _CHUNK))):
        lines += chunk.count(b"\n")
        target -= len(chunk)
    if not chunk.endswith(b"\n"):
        while (rest := stream.readline(_CHUNK)) and not rest.endswith(b"\n"):
            pass
        lines += 1
    return stream.tell(), lines
