"""ArrayRecord files as a source: text, JSON objects or `tf.train.Example`s, a document a record."""

from collections.abc import Iterator
from typing import Any, Literal

from axcore.config import REQUIRED, Fraction, config
from axcore.config.json_files import parse_json
from axcore.data.bad_records import as_text, document_or_bad
from axcore.data.document import Document
from axcore.data.file_source import BadRecord, FileSource, FileSpan
from axcore.data.files import NamedFile, OnBad, check_is_regular, list_files, unreadable
from axcore.data.text_files import bad_fraction
from axcore.data.tf_example import read_example
from axcore.errors import DataError
from axcore.extras import import_extra

_RECORDS_AT_ONCE = 256


class ArrayRecordFiles(FileSource):
    """The records of the ArrayRecord files of a folder that match a glob.

    A document's name is `file:record`, from 0.
    """

    @config
    class Config(FileSource.Config):
        """Which files, and what is in their records.

        Attributes:
            folder: Where to look, relative to the working directory; or a URL.
            glob: Which files, relative to the folder; `**` matches any depth.
            record: What a record is: UTF-8 `text`, a `json` object, or a `tf.train.Example`.
            field: The field or feature that holds the text; a record of `text` is all text.
            on_bad_record: Whether a record without text is an error, or is skipped and counted in a
                warning.
            max_bad_fraction: The share of the records that may be skipped; None for any share.
        """

        folder: str = REQUIRED
        glob: str = "**/*.array_record*"
        record: Literal["text", "json", "example"] = "text"
        field: str = "text"
        on_bad_record: OnBad = "error"
        max_bad_fraction: Fraction | None = None

    folder_fields = ("folder",)
    unit = "records"

    def files(self) -> list[NamedFile]:
        """Returns the files of the folder, by name."""
        return list_files(self.config.folder, self.config.glob)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yields a document for each record."""
        file = span.file
        for number, raw in enumerate(_raw_records(file)):
            yield document_or_bad(file, number, lambda n=number, r=raw: self._document(file, n, r))  # type: ignore[misc]

    @property
    def max_bad_fraction(self) -> float:
        """The share of the records that may be skipped."""
        return bad_fraction(self.config.on_bad_record, self.config.max_bad_fraction)

    def describe(self) -> str:
        """Names the folder and the glob."""
        return f"ArrayRecord files {self.config.folder}/{self.config.glob}"

    def _document(self, file: NamedFile, number: int, raw: bytes) -> Document:
        record, field = self._parsed(raw), self.config.field
        text = as_text(record[field], field) if self.needs_text else ""
        return Document(f"{file.name}:{number}", text, None, number, self.fields_of(record))

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        if self.config.record == "text":
            return {self.config.field: raw}
        if self.config.record == "example":
            return read_example(raw)
        record = parse_json(raw)
        if not isinstance(record, dict):
            raise ValueError("it is no JSON object")
        return record


def _raw_records(file: NamedFile) -> Iterator[bytes]:
    module = import_extra(
        "array_record.python.array_record_module",
        used_by="a file of ArrayRecord",
        error=DataError,
        where=file.where,
    )
    try:
        check_is_regular(file)
        reader = module.ArrayRecordReader(str(file.path), "readahead_buffer_size:0")
    except OSError as error:
        raise unreadable(file, error) from error
    except RuntimeError as error:
        raise _damaged(file, error) from error
    try:
        count = reader.num_records()  # 0 of a file without an index, and then `close` says so
        for begin in range(0, count, _RECORDS_AT_ONCE):
            yield from reader.read(begin, min(begin + _RECORDS_AT_ONCE, count))
        reader.close()
    except (RuntimeError, IndexError, ValueError) as error:
        raise _damaged(file, error) from error


def _damaged(file: NamedFile, why: object) -> DataError:
    return DataError(
        f"{file.name} is no ArrayRecord file that can be read: {str(why).splitlines()[0]}.",
        where=file.where,
        hint="Copy the file again, or set the source's glob to leave it out.",
    )
