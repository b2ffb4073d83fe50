"""ArrayRecord files as a source: text, JSON objects or `tf.train.Example`s, a document a record.

`tf.train.Example`, a record of named features, is read without TensorFlow.

Source: tensorflow/core/example/feature.proto, and the wire format of protocol buffers.
"""

import struct
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from axcore.config import config
from axcore.config.json_files import parse_json
from axcore.data.document import Document
from axcore.data.sources.file_source import BadRecord, Files, FileSpan, as_text, document_or_bad
from axcore.data.sources.files import NamedFile, check_is_regular, unreadable
from axcore.errors import DataError
from axcore.extras import import_extra

_RECORDS_AT_ONCE = 256


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ArrayRecordFiles(Files):
    """The records of the ArrayRecord files of a folder that match a glob.

    A document's name is `file:record`, from 0.
    """

    @config
    class Config(Files.Config):
        """Which files, and what is in their records.

        Attributes:
            glob: Which files, relative to the folder; `**` matches any depth.
            record: What a record is: UTF-8 `text`, a `json` object, or a `tf.train.Example`.
            field: The field or feature that contains the text; a record of `text` is all text.
        """

        glob: str = "**/*.array_record*"
        record: Literal["text", "json", "example"] = "text"
        field: str = "text"

    kind = "ArrayRecord files"
    unit = "records"

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield a document for each record."""
        file = span.file
        for number, raw in enumerate(_raw_records(file)):
            yield document_or_bad(file, number, lambda n=number, r=raw: self._document(file, n, r))  # type: ignore[misc]

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
            raise ValueError("it is not a JSON object")
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
        # Without read-ahead, which is for a reader that goes record by record; here runs are asked
        # for.
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
        f"{file.name} cannot be read as an ArrayRecord file: {str(why).splitlines()[0]}.",
        where=file.where,
        hint="Copy the file again, or set the source's glob to leave it out.",
    )


def read_example(raw: bytes) -> dict[str, Any]:
    """Return the features of an example: bytes, or a list of numbers, by name.

    A feature of one byte string is that string; others are lists.

    Raises:
        ValueError: It is not an example.
    """
    features: dict[str, Any] = {}
    for entries in _messages(raw, 1):
        for entry in _messages(entries, 1):
            names = [value for number, value in _fields(entry) if number == 1]
            values = [value for number, value in _fields(entry) if number == 2]
            if len(names) != 1 or len(values) != 1:
                raise ValueError("it is not a tf.train.Example")
            features[_bytes(names[0]).decode("utf-8")] = _feature(_bytes(values[0]))
    if not features:
        raise ValueError("it is not a tf.train.Example with features")
    return features


def _feature(raw: bytes) -> Any:
    for kind, value in _fields(raw):
        content = _bytes(value)
        if kind == 1:
            found = list(_messages(content, 1))
            return found[0] if len(found) == 1 else found
        if kind == 2:
            return [one for packed in _parts(content) for one in _floats(packed)]
        if kind == 3:
            return [one for packed in _parts(content) for one in _integers(packed)]
    return []


def _parts(raw: bytes) -> Iterator[Any]:
    return (value for number, value in _fields(raw) if number == 1)


def _floats(value: Any) -> list[float]:
    if isinstance(value, float):
        return [value]
    found: list[float] = np.frombuffer(_bytes(value), "<f4").tolist()
    return found


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield _signed(value)
        return
    packed, place = _bytes(value), 0
    while place < len(packed):
        number, place = _varint(packed, place)
        yield _signed(number)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _messages(raw: bytes, wanted: int) -> Iterator[bytes]:
    return (_bytes(value) for number, value in _fields(raw) if number == wanted)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("it is not a tf.train.Example")
    return value


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: their numbers, and bytes, integers or floats."""
    place = 0
    while place < len(raw):
        key, place = _varint(raw, place)
        kind = key & 7
        if kind == _VARINT:
            value: Any
            value, place = _varint(raw, place)
        elif kind == _BYTES:
            length, place = _varint(raw, place)
            value, place = raw[place : place + length], place + length
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            piece, place = raw[place : place + size], place + size
            value = struct.unpack("<f", piece)[0] if len(piece) == 4 else piece
        else:
            raise ValueError("it is not a protocol buffer")
        if place > len(raw):
            raise ValueError("it is cut short")
        yield key >> 3, value


def _varint(raw: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(raw):
            raise ValueError("it is cut short")
        byte = raw[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), place
    raise ValueError("it is not a protocol buffer")
