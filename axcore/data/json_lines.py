"""JSON lines as a source: one document a line, its text in one field."""

import json
from collections.abc import Iterator

import attrs

from axcore.config import REQUIRED, config
from axcore.data.document import Document, Source
from axcore.data.files import (
    NamedFile,
    OnBad,
    check_is_regular,
    explain_decoding,
    list_files,
    unreadable,
    warn_skipped,
)
from axcore.errors import DataError


class JsonLines(Source):
    """The lines of the files of a folder that match a glob; empty lines are no documents.

    A document's name is `file:line`, so that lines added at the end of a file leave the split of
    the others as it was.
    """

    @config
    class Config(Source.Config):
        """Which files, and which field.

        Attributes:
            folder: Where to look, relative to the working directory.
            glob: Which files, relative to the folder; `**` matches any depth.
            field: The field of each line's object that holds the text.
            on_bad_line: Whether a line that does not parse or lacks the text is an error, or is
                skipped and counted in a warning.
        """

        folder: str = REQUIRED
        glob: str = "**/*.jsonl"
        field: str = "text"
        on_bad_line: OnBad = "error"

    folder_fields = ("folder",)

    def documents(self) -> Iterator[Document]:
        """Yields a document for each line of each file."""
        skipped: list[DataError] = []
        num_lines = 0
        for file in list_files(self.config.folder, self.config.glob):
            for line in _read_lines(file):
                num_lines += 1
                try:
                    text = line.text_of(self.config.field)
                except DataError as error:
                    if self.config.on_bad_line == "error":
                        raise
                    skipped.append(error)
                else:
                    yield Document(f"{file.name}:{line.number}", text)
        warn_skipped(skipped, f"of {num_lines} lines")

    def describe(self) -> str:
        """Names the folder, the glob and the field."""
        return f"JSON lines {self.config.folder}/{self.config.glob}, field {self.config.field!r}"


def _read_lines(file: NamedFile) -> Iterator["_Line"]:
    try:
        check_is_regular(file)
        with file.path.open("rb") as stream:
            offset = 0
            for number, raw in enumerate(stream, start=1):
                if not raw.isspace():
                    yield _Line(file, number, offset, raw)
                offset += len(raw)
    except OSError as error:
        raise unreadable(file, error) from error


@attrs.frozen
class _Line:
    """A line of a file: its number from 1, and the offset of its first byte."""

    file: NamedFile
    number: int
    offset: int
    raw: bytes

    def text_of(self, field: str) -> str:
        """Returns the text in `field`.

        Raises:
            DataError: Naming the file and the line, and what is wrong with it.
        """
        record = self._record()
        if not isinstance(record, dict):
            raise self._error(f"holds {_kind(record)}, not an object")
        if field not in record:
            names = ", ".join(repr(name) for name in record) or "nothing"
            raise self._error(
                f"has no field {field!r}; it has {names}",
                hint="Set the source's field to the one that holds the text.",
            )
        text = record[field]
        if not isinstance(text, str):
            raise self._error(f"field {field!r} holds {_kind(text)}, not a string")
        if not _is_unicode(text):
            raise self._error(f"field {field!r} holds half of a surrogate pair")
        return text

    def _record(self) -> object:
        try:
            return json.loads(self.raw.rstrip(b"\r\n").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self._error(f"is not UTF-8: {explain_decoding(error, self.offset)}") from error
        except json.JSONDecodeError as error:
            what = error.msg.removesuffix(" at")
            raise self._error(f"is not JSON: {what} at column {error.colno}") from error
        except (ValueError, RecursionError) as error:
            raise self._error(f"is not JSON that can be read: {error}") from error

    def _error(self, reason: str, hint: str | None = None) -> DataError:
        return DataError(
            f"{self.file.name}, line {self.number} {reason}.",
            where=f"{self.file.path}:{self.number}",
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
