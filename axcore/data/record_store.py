"""Records of a source on this machine: read once, checked, and mapped into memory from then on.

FOLDER/records.bin     the name and the fields of each record, one after the other
FOLDER/index.npy       [N, F + 3] where name and fields begin and end, and a checksum
FOLDER/kinds.npy       [N, F] whether a field is bytes, JSON, or not there
FOLDER/store.json      names of the fields, and a digest; written last, so that a folder with it is
                       complete

Letters: N records, F fields.
"""

import json
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from axcore.config import config, evolve, to_json
from axcore.config.json_files import parse_json, read_json_file
from axcore.data.cache import cache_folder
from axcore.data.document import Document
from axcore.data.sources.file_source import (
    BadRecord,
    FileSource,
    FileSpan,
    check_bad_records,
)
from axcore.data.sources.files import NamedFile, warn_skipped
from axcore.data.tokenizers.tokenizer import ByteTokenizer, Tokenizer
from axcore.data.transforms.transform import Dropped, Transform, TransformTools, apply_all
from axcore.errors import DataError
from axcore.whole_files import whole_file, write_whole

_RECORDS, _INDEX, _KINDS, _ABOUT = "records.bin", "index.npy", "kinds.npy", "store.json"
_VERSION = 1
"""Of the folder's format; another one is another folder."""

Check = Callable[[Mapping[str, Any]], None]


class RecordFields(Transform):
    """Keeps fields of a record as they are; it needs no text."""

    @config
    class Config(Transform.Config):
        """Which fields.

        Attributes:
            names: Of the fields.
        """

        names: tuple[str, ...] = ()

    replaces_text = True

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields."""
        return tuple(self.config.names)

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Return the document."""
        return document


class RecordStore:
    """The records of a source by number; each is checked as it is read.

    Attributes:
        digest: A short hash of all that is in them.
    """

    def __init__(self, folder: Path) -> None:
        """Open a folder that `open_records` wrote."""
        self._folder = folder
        about = read_json_file(folder / _ABOUT)
        self.digest: str = about["digest"]
        self._fields: list[str] = about["fields"]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return the fields of a record.

        Raises:
            DataError: It is not what was stored.
        """
        *ends, checksum = (int(one) for one in self._index[number])
        content = bytes(self._bytes[ends[0] : ends[-1]])
        if zlib.crc32(content) != checksum:
            raise DataError(
                f"record {number}, {self.name(number)}, is not what was stored",
                where=str(self._folder),
                hint="the disk damaged it: remove this folder, and the data are read again",
            )
        found = {}
        for index, (field, kind) in enumerate(zip(self._fields, self._kinds[number], strict=True)):
            # The name comes first.
            value = content[ends[index + 1] - ends[0] : ends[index + 2] - ends[0]]
            if kind != _ABSENT:
                found[field] = value if kind == _BYTES else parse_json(value)
        return found

    def name(self, number: int) -> str:
        """Return what a record is called."""
        begin, end = self._index[number, :2]
        return bytes(self._bytes[begin:end]).decode("utf-8", "replace")

    @property
    def names(self) -> Iterator[str]:
        """What the records are called."""
        return (self.name(number) for number in range(len(self)))

    @cached_property
    def _index(self) -> Any:
        return np.load(self._folder / _INDEX, mmap_mode="r", allow_pickle=False)

    @cached_property
    def _kinds(self) -> Any:
        return np.load(self._folder / _KINDS, mmap_mode="r", allow_pickle=False)

    @cached_property
    def _bytes(self) -> Any:
        path = self._folder / _RECORDS
        # An empty file cannot be mapped.
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def open_records(
    source: FileSource.Config,
    fields: Sequence[str],
    checks: Mapping[str, Check],
    *,
    key: str = "",
) -> RecordStore:
    """Return the records of a source, read now where this machine does not have them yet.

    Args:
        source: Where they come from.
        fields: The fields that are kept.
        checks: What each record has to pass, by the name of who reads it. They raise a ValueError
            or a KeyError where a record is bad, which the source's `on_bad` decides about.
        key: What the checks depend on: records that passed others are read again.

    Raises:
        DataError: Files cannot be read, or more records are bad than may be.
    """
    reads: Any = evolve(
        source, transforms=(*source.transforms, RecordFields.Config(names=tuple(fields)))
    )
    reader: FileSource = reads.build()
    files = reader.files()
    # Name, size and time of every file: changed data are other records.
    states = [(file.name, *file.state()) for file in files]
    identity = f"{_VERSION} {to_json(reads)} {key} {states}"
    folder = cache_folder() / "records" / blake2b(identity.encode(), digest_size=16).hexdigest()
    if not (folder / _ABOUT).exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, reader, files, fields, checks)
    return RecordStore(folder)


_ABSENT, _BYTES, _JSON = range(3)


def _write(
    folder: Path,
    reader: FileSource,
    files: Sequence[NamedFile],
    fields: Sequence[str],
    checks: Mapping[str, Check],
) -> None:
    """Write the records of a source; `store.json` comes last."""
    # Arrays and not lists: there may be many millions of records.
    index, kinds, begin = array("q"), array("B"), 0
    digest = blake2b(digest_size=16)
    with whole_file(folder / _RECORDS) as out:
        for document in _checked(reader, files, checks):
            name = document.name.encode("utf-8", "replace")
            parts = [_encoded(document.fields.get(field)) for field in fields]
            values = [name, *(value for _, value in parts)]
            content, of_fields = b"".join(values), [kind for kind, _ in parts]
            index.append(begin)
            for value in values:
                begin += len(value)
                index.append(begin)
            index.append(zlib.crc32(content))
            kinds.extend(of_fields)
            digest.update(f"{[len(value) for value in values]}{of_fields}".encode())
            digest.update(content)
            out.write(content)
    columns = len(fields) + 3
    for file, made in (
        (_INDEX, np.array(index, np.int64).reshape(-1, columns)),
        (_KINDS, np.array(kinds, np.uint8).reshape(len(index) // columns, len(fields))),
    ):
        with whole_file(folder / file) as out:
            np.save(out, made, allow_pickle=False)
    about = {"fields": list(fields), "digest": digest.hexdigest()}
    write_whole(folder / _ABOUT, json.dumps(about))


def _encoded(value: Any) -> tuple[int, bytes]:
    if value is None:
        return _ABSENT, b""
    if isinstance(value, bytes):
        return _BYTES, value
    return _JSON, json.dumps(value).encode()


def _checked(
    reader: FileSource, files: Sequence[NamedFile], checks: Mapping[str, Check]
) -> Iterator[Document]:
    """Yield the documents that pass; the others are counted, as the source's `on_bad` says."""
    bad: list[DataError] = []
    num_records, seen, tokenizer = 0, set(), ByteTokenizer.Config().build()
    for file in files:
        for record in reader.read(FileSpan(file)):
            num_records += 1
            try:
                found = _documents(reader, record, checks, tokenizer)
            except DataError as error:
                if reader.max_bad_fraction == 0:
                    raise
                bad.append(error)
                continue
            for document in found:
                if document.key is None or document.key not in seen:
                    seen.add(document.key)
                    yield document
    check_bad_records(reader, num_records, len(bad), bad[:1])
    if bad:
        warn_skipped(len(bad), f"of {num_records} {reader.unit}", bad[0])


def _documents(
    reader: FileSource,
    record: Document | BadRecord,
    checks: Mapping[str, Check],
    tokenizer: Tokenizer,
) -> list[Document]:
    """Return the documents of a record.

    Raises:
        DataError: It is bad.
    """
    if isinstance(record, BadRecord):
        raise record.error
    made = apply_all(reader.transforms, record, tokenizer)
    if isinstance(made, Dropped):
        return []
    for document in made:
        for name, check in checks.items():
            try:
                check(document.fields)
            except (ValueError, KeyError) as error:
                what = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) else error
                raise DataError(
                    f"{document.name} is bad for feature {name!r}: {what}.",
                    where=document.name,
                    hint="correct or remove it, or set the source's on_bad='skip'",
                ) from error
    return made
