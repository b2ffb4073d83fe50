"""Tar files of samples, as WebDataset writes them, as a source: one document a sample.

Files that follow one another and share the part of their name before its first dot are a sample:
`a/001.txt` and `a/001.jpg`.
"""

import io
import tarfile
from collections.abc import Iterator
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from axcore.config import PositiveInt, config
from axcore.config.json_files import BYTE_ORDER_MARK, parse_json
from axcore.data.document import Document
from axcore.data.sources.file_source import BadRecord, Files, FileSpan, as_text, document_or_bad
from axcore.data.sources.files import NamedFile, open_decompressed
from axcore.errors import DataError

_MIB = 1 << 20
_CHUNK = 1 << 15
_MARK = BYTE_ORDER_MARK.encode()

Sample = dict[str, bytes | None]
"""The files of a sample by what follows the first dot of their names; None is one too large."""


class TarFiles(Files):
    """The samples of the tar files of a folder that match a glob.

    A document's name is `file:sample`, from 0. Files of gzip and zstd are decompressed as they
    are read. Transforms read the files of a sample as fields, and those of its `json`.
    """

    @config
    class Config(Files.Config):
        """Which files, and what is in their samples.

        Attributes:
            glob: Which files, relative to the folder; `**` matches any depth.
            field: The suffix of the file that contains the text, without its dot: UTF-8, or an
                object in `json`, or tokens in `npy`.
            json_field: The field of the object that contains the text, where `field` is `json`.
            max_member_mib: A sample with a file of more is bad; no such file is read.
        """

        glob: str = "**/*.tar"
        field: str = "txt"
        json_field: str = "text"
        max_member_mib: PositiveInt = 64

    unit = "samples"

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield a document for each sample."""
        file = span.file
        for number, one in enumerate(_samples(file, self.config.max_member_mib * _MIB)):
            yield document_or_bad(file, number, lambda n=number, s=one: self._document(file, n, s))  # type: ignore[misc]

    def describe(self) -> str:
        """Name the folder, the glob and the suffix."""
        return f"samples of {self.config.folder}/{self.config.glob}, {self.config.field!r}"

    def _document(self, file: NamedFile, number: int, sample: Sample | ValueError) -> Document:
        if isinstance(sample, ValueError):
            raise sample
        named = (*self.wanted_fields, *self.optional_fields)
        record: dict[str, Any] = {**_json_fields(sample, named), **sample}
        text, tokens = self._text(sample) if self.needs_text else ("", None)
        fields = self.fields_of(record)
        return Document(f"{file.name}:{number}", text, tokens, number, fields)

    def _text(self, sample: Sample) -> tuple[str, NDArray[Any] | None]:
        field = self.config.field
        content = sample[field] or b""
        if field == "npy":
            return "", _tokens(content)
        if field == "json":
            name = self.config.json_field
            return as_text(_object(content)[name], name), None
        return as_text(content.removeprefix(_MARK), field), None


def _json_fields(sample: Sample, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a sample's `json`, where a transform asks for what no file is."""
    if all(name in sample for name in wanted) or "json" not in sample:
        return {}
    return _object(sample["json"] or b"")


def _object(content: bytes) -> dict[str, Any]:
    found = parse_json(content)
    if not isinstance(found, dict):
        raise ValueError("its json is not an object")
    return found


def _tokens(content: bytes) -> NDArray[Any]:
    try:
        tokens = np.load(io.BytesIO(content), allow_pickle=False)
    except (OSError, EOFError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"its npy cannot be read: {error}") from error
    is_tokens = isinstance(tokens, np.ndarray) and tokens.ndim == 1 and tokens.dtype.kind in "iu"
    if not is_tokens:
        raise ValueError("its npy is not a list of integers")
    return np.asarray(tokens)


def _samples(file: NamedFile, largest: int) -> Iterator[Sample | ValueError]:
    """Yield the samples of a tar, or why one is bad."""
    key: str | None = None
    sample: Sample = {}
    bad: ValueError | None = None
    for name, size, content in _members(file, largest):
        new_key, suffix = _split(name)
        if new_key != key and key is not None:
            yield bad or sample
            sample, bad = {}, None
        key = new_key
        if content is None:
            bad = ValueError(f"{name} has {size:,} bytes, more than max_member_mib")
        elif suffix in sample:
            bad = ValueError(f"it has two files {name!r}")
        sample[suffix] = content
    if key is not None:
        yield bad or sample


def _split(name: str) -> tuple[str, str]:
    """Return the key of a file's sample, and its suffix."""
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")
    return folder + slash + stem, suffix


def _members(file: NamedFile, largest: int) -> Iterator[tuple[str, int, bytes | None]]:
    """Yield name, size and content of the regular files of a tar, to its very end."""
    with open_decompressed(file) as stream:
        try:
            with tarfile.open(
                fileobj=stream, mode="r|", errors="strict", tarinfo=_StrictHeader
            ) as tar:
                for member in tar:
                    if member.isfile():
                        is_small = member.size <= largest
                        read = tar.extractfile(member).read() if is_small else None  # type: ignore[union-attr]
                        if read is not None and len(read) != member.size:
                            raise tarfile.ReadError("a file is cut short")
                        yield member.name, member.size, read
                    elif not member.isdir():
                        raise tarfile.ReadError(f"{member.name} is neither a file nor a folder")
                    # tarfile keeps every header it has read, also of a stream;
                    # a tar of millions of samples would fill the memory.
                    tar.members = []  # type: ignore[attr-defined] # it would keep all of them
                _check_end(tar)
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise DataError(
                f"{file.name} cannot be read to its end as a tar: {error}.",
                where=file.where,
                hint="Copy the file again, or set the source's glob to leave it out.",
            ) from error


class _StrictHeader(tarfile.TarInfo):
    """A header that is damaged or missing is an error; `tarfile` takes it for the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            # Two blocks of zeros are the end of a tar; a
            # damaged header raises the same error in tarfile.
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):  # the mark of the end
                raise
            raise tarfile.ReadError(str(error)) from error


def _check_end(tar: tarfile.TarFile) -> None:
    """Check that nothing follows the mark of the end."""
    stream: IO[bytes] = tar.fileobj  # type: ignore[assignment]
    # A tar that was written over a longer one, or two joined ones, has
    # more behind the end; to stop there would lose samples silently.
    while block := stream.read(_CHUNK):
        if block.strip(b"\0"):
            raise tarfile.ReadError("something follows what looks like its end")
