"""Files of tokens that other systems made, as sources: those of nanoGPT and those of Megatron."""

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.config import NonNegativeInt, config
from axcore.data.document import Document
from axcore.data.sources.file_source import BadRecord, Files, FileSpan
from axcore.data.sources.files import NamedFile, check_is_regular, list_files, unreadable
from axcore.errors import DataError

_LLM_C_MAGIC = 20240520
_LLM_C_HEADER = 1024
_WINDOW = 1 << 20

_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class TokenFiles(Files):
    """Files of tokens end to end, as nanoGPT and llm.c write them.

    A document ends with `end_token`. The header that llm.c writes is left out, and so is the end
    token that it writes before the first document. A document's name is `file:token`, the number of
    its first one.
    """

    @config
    class Config(Files.Config):
        """Which files, and what is in them.

        Attributes:
            glob: Which files, relative to the folder; `**` matches any depth.
            dtype: Of a token, little-endian.
            end_token: What ends a document; 50256 is GPT-2's.
        """

        glob: str = "**/*.bin"
        dtype: Literal["uint16", "uint32"] = "uint16"
        end_token: NonNegativeInt = 50256

    kind = "token files"
    has_bad_records = False
    unit = "documents"

    def spans(self, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
        """Yield pieces; a document is in that in which it begins."""
        # A multiple of four bytes, so that no token of two or four bytes is cut.
        begin, step = 0, -(-target // 4) * 4
        while size - begin >= 2 * step:
            yield FileSpan(file, begin, begin + step)
            begin += step
        yield FileSpan(file, begin)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield the documents that begin in a piece."""
        tokens = self._mapped(span.file)
        width = tokens.itemsize
        stop = len(tokens) if span.end is None else min(span.end // width, len(tokens))
        begin = self._first_begin(tokens, span.begin // width)
        while begin < stop:
            end = self._after_end(tokens, begin)
            # llm.c writes an end token before the first document too; nothing else is in that one.
            if end - begin > 1:
                yield Document(f"{span.file.name}:{begin}", "", np.array(tokens[begin:end]))
            begin = end

    def _first_begin(self, tokens: NDArray[Any], place: int) -> int:
        """Return where the first document begins that does not begin before a place."""
        first = _LLM_C_HEADER // tokens.itemsize if _is_of_llm_c(tokens) else 0
        return first if place <= first else self._after_end(tokens, place - 1)

    def _after_end(self, tokens: NDArray[Any], begin: int) -> int:
        """Return the place after the next end token, or the end of the file."""
        for window in range(begin, len(tokens), _WINDOW):
            ends = np.flatnonzero(tokens[window : window + _WINDOW] == self.config.end_token)
            if len(ends):
                # The first end token of the window; most documents
                # are shorter, so a file is read about once.
                return window + int(ends[0]) + 1
        return len(tokens)

    def _mapped(self, file: NamedFile) -> NDArray[Any]:
        dtype = np.dtype(self.config.dtype).newbyteorder("<")
        return _mapped_tokens(file, dtype)


def _is_of_llm_c(tokens: NDArray[Any]) -> bool:
    head = tokens[:4].tobytes()[:4]
    return len(head) == 4 and struct.unpack("<i", head)[0] == _LLM_C_MAGIC


class MegatronFiles(Files):
    """Pairs of `.bin` and `.idx` files, as Megatron-LM's `preprocess_data.py` writes them.

    A document's name is `file:number`, from 0.
    """

    @config
    class Config(Files.Config):
        """Which files.

        Attributes:
            glob: Which index files, relative to the folder; the tokens are next to each.
        """

        glob: str = "**/*.idx"

    kind = "Megatron files"
    has_bad_records = False
    unit = "documents"

    def files(self) -> list[NamedFile]:
        """Return the files of tokens, by the names of their indices."""
        found = list_files(self.config.folder, self.config.glob)
        return [attrs.evolve(one.beside(".bin"), name=one.name) for one in found]

    def read_with(self, file: NamedFile) -> tuple[NamedFile, ...]:
        """Return the index of a file of tokens."""
        return (file.beside(Path(file.name).suffix),)

    def spans(self, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
        """Yield runs of documents."""
        begins = _read_index(file).begins
        cuts = np.searchsorted(begins, np.arange(0, max(size - target, 1), target))
        cuts = np.unique(cuts[cuts < len(begins)]).tolist()
        for first, last in zip(cuts, [*cuts[1:], None], strict=True) if cuts else ():
            end = None if last is None else int(begins[last])
            yield FileSpan(file, int(begins[first]), end, first)

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield the documents of a piece."""
        index = _read_index(span.file)
        tokens = _mapped_tokens(span.file, index.dtype)
        index.check(span.file, len(tokens))
        for number in range(span.first_record, len(index.lengths)):
            if span.end is not None and index.begins[number] >= span.end:
                return
            begin = int(index.begins[number]) // index.dtype.itemsize
            found = np.array(tokens[begin : begin + int(index.lengths[number])])
            yield Document(f"{span.file.name}:{number}", "", found)


class _Index:
    """What an index file says: of each document its tokens, and its first byte."""

    def __init__(self, content: bytes) -> None:
        """Read it.

        Raises:
            ValueError: It is not an index.
        """
        head = "<9sQBQQ"
        if len(content) < struct.calcsize(head):
            raise ValueError("it is too short")
        magic, version, code, count, num_documents = struct.unpack_from(head, content)
        if magic != _MEGATRON_MAGIC or version != 1 or code not in _MEGATRON_DTYPES:
            raise ValueError(f"it begins with {magic!r}, version {version}, dtype {code}")
        size = struct.calcsize(head)
        if len(content) < size + 12 * count + 8 * num_documents:
            raise ValueError(f"it says that it has {count} sequences and ends before them")
        self.dtype = np.dtype(_MEGATRON_DTYPES[code])
        lengths = np.frombuffer(content, "<i4", count, size).astype(np.int64)
        begins = np.frombuffer(content, "<i8", count, size + 4 * count)
        edges = np.frombuffer(content, "<i8", num_documents, size + 12 * count)
        if not num_documents or edges[0] or edges[-1] != count or (np.diff(edges) < 0).any():
            raise ValueError("its documents are not its sequences")
        first = edges[:-1][np.diff(edges) > 0]
        self.begins = begins[first]
        self.lengths = np.add.reduceat(lengths, first) if count else lengths

    def check(self, file: NamedFile, num_tokens: int) -> None:
        """Check that documents are within the file of tokens.

        Raises:
            DataError: One does not.
        """
        begin, rest = np.divmod(self.begins, self.dtype.itemsize)
        is_out = (
            (begin < 0) | (self.lengths < 0) | (begin + self.lengths > num_tokens) | (rest != 0)
        )
        if is_out.any():
            raise DataError(
                f"Document {int(np.argmax(is_out))} of {file.name} is not within the "
                f"{num_tokens} tokens of {file.path.name}.",
                where=file.where,
                hint="Copy both files again: one of them is cut short, or another one's.",
            )


def _read_index(file: NamedFile) -> _Index:
    path = file.path.with_suffix(Path(file.name).suffix)
    named = attrs.evolve(file, path=path)
    try:
        check_is_regular(named)
        return _index_of(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise unreadable(named, error) from error
    except ValueError as error:
        raise DataError(
            f"{file.name} is not an index of Megatron's: {error}.",
            where=str(path),
            hint="Set the source's glob to the .idx files of preprocess_data.py.",
        ) from error


# Two: the file that is read and the next one; an index of a large corpus has gigabytes.
@lru_cache(2)
# The time of change is part of the key, so a file that was replaced is read again.
def _index_of(path: Path, changed_ns: int) -> _Index:
    """Return an index, read once for all parts of a file that did not change."""
    return _Index(path.read_bytes())


def _mapped_tokens(file: NamedFile, dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return the tokens of a file, mapped into memory.

    Raises:
        DataError: It cannot be read, or does not hold full tokens.
    """
    try:
        check_is_regular(file)
        size = file.path.stat().st_size
        if size % dtype.itemsize:
            raise DataError(
                f"{file.name} has {size} bytes, not a multiple of {dtype.itemsize} for each token.",
                where=file.where,
                hint="Set the source's dtype, or copy the file again.",
            )
        # numpy cannot map a file without bytes.
        return np.asarray(np.memmap(file.path, dtype, "r")) if size else np.zeros(0, dtype)
    except OSError as error:
        raise unreadable(file, error) from error
