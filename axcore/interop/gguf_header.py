"""GGUF files: their metadata, and tensors by name, each dequantized as it is read.

A file is its metadata by key, what it has of each tensor, and the tensors' bytes. The header is
read here, since the library `gguf` takes a quarter of a minute for the vocabulary of a Qwen; the
library dequantizes. A model may be in several files, the first of which has the metadata.

Source: the format's description at github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import jax.numpy as jnp
import numpy as np

from axcore.config.json_files import check_is_fetched
from axcore.errors import CheckpointError
from axcore.extras import import_extra
from axcore.interop.quantized.tensors import filled
from axcore.whole_files import open_regular

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Types of values by their number in a file, as `struct` has them."""
_STRING, _ARRAY = 8, 9
_PLAIN: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_DIMS = 4
FETCH_AGAIN = "fetch the file again"


@attrs.frozen
class GGUFPlace:
    """Where a tensor is.

    Args:
        file: The file.
        type: Of its numbers, as the library `gguf` calls it.
        shape: Its shape, the slowest dimension first.
        begin: Its first byte in the file.
        block: Numbers of a row that are stored together, and their bytes.
    """

    file: Path
    type: str
    shape: tuple[int, ...]
    begin: int
    block: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Its size."""
        numbers, size = self.block
        return math.prod(self.shape) // numbers * size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what is read."""
        dtype: np.dtype[Any] = np.dtype(_PLAIN.get(self.type, np.float32))
        return dtype

    def part(self, index: int) -> "GGUFPlace":
        """Return where the part at an index of the first dimension is."""
        part = attrs.evolve(self, shape=self.shape[1:])
        return attrs.evolve(part, begin=self.begin + index * part.nbytes)

    def read(self) -> np.ndarray:
        """Return the tensor: memory-mapped, or what its blocks mean, in float32."""
        # Mapped: a model may be larger than memory, and only what is looked at is read.
        raw = np.memmap(self.file, np.uint8, "r", self.begin, (self.nbytes,)).view(np.ndarray)
        if self.type in _PLAIN:
            return raw.view(self.dtype).reshape(self.shape)
        from gguf import GGMLQuantizationType, quants

        numbers, size = self.block
        kind, width = GGMLQuantizationType[self.type], self.shape[-1]
        rows = raw.reshape(-1, width // numbers * size)

        def fill(at: slice, out: np.ndarray) -> None:
            # A block of random bytes may have a scale that is not finite; whoever copies looks.
            with np.errstate(all="ignore"):
                out[:] = quants.dequantize(rows[at], kind)

        # Some rows at a time: the library's steps of all rows at once would miss every cache.
        return filled((len(rows), width), fill).reshape(self.shape)


@attrs.frozen
class GGUFContent:
    """What a model's file, or its files, contain.

    Args:
        path: The first file.
        metadata: By key.
        tensors: By name.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFPlace]

    @property
    def commonest_type(self) -> str:
        """The type that most numbers have."""
        counts: Counter[str] = Counter()
        for place in self.tensors.values():
            counts[place.type] += math.prod(place.shape)
        return counts.most_common(1)[0][0]


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file, by its name."""
    return path.suffix == ".gguf" and not path.is_dir()


def read_gguf(path: Path) -> GGUFContent:
    """Return what a model's files contain; read their headers alone.

    Args:
        path: The file, or any of several that are numbered.

    Raises:
        CheckpointError: A file is missing, truncated or damaged, or has tensors of unknown types.
        ConfigError: `gguf` is not installed.
    """
    import_extra("gguf", used_by="a GGUF file", error=CheckpointError, where=str(path))
    files = _files(path)
    first, tensors = _read_file(files[0])
    for file in files[1:]:
        _, more = _read_file(file)
        if twice := sorted(tensors.keys() & more.keys()):
            raise CheckpointError(
                f"{twice[0]} is in {tensors[twice[0]].file.name} and {file.name}",
                where=str(file),
                hint="fetch the files again",
            )
        tensors |= more
    count = first.get("split.tensors.count", len(tensors))
    if not tensors or len(tensors) < count:
        raise CheckpointError(
            f"{len(files)} files have {len(tensors)} tensors, and the model {count}",
            where=str(files[0]),
            hint="name a file of a model with weights; where it is in several, fetch all of them",
        )
    return GGUFContent(files[0], first, tensors)


def _files(path: Path) -> list[Path]:
    """Return the files of a model.

    Raises:
        CheckpointError: One of several is missing.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = [f"{match['stem']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing or not names:
        raise CheckpointError(
            f"the model is in {count} files, of which {len(missing)} are missing: "
            + ", ".join(missing[:3]),
            where=str(path.parent),
            hint="fetch all files of the model into one folder",
        )
    return [path.parent / name for name in names]


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, GGUFPlace]]:
    """Return the metadata and the tensors of a file.

    Raises:
        CheckpointError: It is missing, or not a complete GGUF file.
    """
    try:
        check_is_fetched(path, error=CheckpointError)
        with open_regular(path) as file:
            if path.stat().st_size < 24:
                raise ValueError("it is truncated: a header alone has 24 bytes")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Header(data).read(path)
    except OSError as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {error.strerror}", where=str(path), hint="name a file"
        ) from error
    except (ValueError, struct.error) as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {error}", where=str(path), hint=FETCH_AGAIN
        ) from error


class _Header:
    """Reads the header of a file from its beginning on."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at, self._size = data, 0, len(data)

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, GGUFPlace]]:
        """Return the metadata and the tensors.

        Raises:
            ValueError: The file is not as its header says.
        """
        if self._bytes(4) != _MAGIC:
            raise ValueError("it does not begin as a GGUF file does")
        (version,) = self._numbers("I", 1)
        if version not in _VERSIONS:
            raise ValueError(f"it has version {version} of the format; 2 and 3 are read")
        num_tensors, num_keys = self._numbers("Q", 2)
        metadata: dict[str, Any] = {}
        for _ in self._counted(num_keys, 12):
            key = self._text()
            if key in metadata:
                raise ValueError(f"it has {key:.80} twice")
            metadata[key] = self._value(*self._numbers("I", 1))
        entries = {}
        for _ in self._counted(num_tensors, 24):
            name, entry = self._text(), self._entry()
            if name in entries:
                raise ValueError(f"it has the tensor {name:.80} twice")
            entries[name] = entry
        align = metadata.get("general.alignment", 32)
        if not (type(align) is int and align > 0 and align % 8 == 0):
            raise ValueError(f"its alignment is {align!r}")
        begin = self._at + -self._at % align
        return metadata, dict(self._places(path, entries, begin))

    def _places(
        self, path: Path, entries: Mapping[str, Any], begin: int
    ) -> Iterator[tuple[str, GGUFPlace]]:
        """Yield where tensors are.

        Raises:
            ValueError: One is not within the file, or has a type that the library does not know.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

        end = begin
        known = {*_PLAIN, *(kind.name for kind in quants._type_traits)}
        for name, (shape, number, offset) in entries.items():
            try:
                kind = GGMLQuantizationType(number)
            except ValueError:
                kind = None
            if kind is None or kind.name not in known:
                what = number if kind is None else kind.name
                raise ValueError(
                    f"{name:.80} has numbers of type {what}, which is not read; read are "
                    + ", ".join(sorted(known))
                )
            block, size = GGML_QUANT_SIZES[kind]
            if 0 in shape or shape[-1] % block:
                raise ValueError(
                    f"{name:.80} has shape {list(shape)}, and {kind.name} blocks of {block} numbers"
                )
            place = GGUFPlace(path, kind.name, shape, begin + offset, (block, size))
            if place.begin + place.nbytes > self._size:
                raise ValueError(
                    f"it is truncated: {name:.80} ends at byte {place.begin + place.nbytes:,}, and "
                    f"the file at {self._size:,}"
                )
            if place.begin < end:
                raise ValueError(f"{name:.80} overlaps with the bytes before it")
            end = place.begin + place.nbytes
            yield name, place

    def _entry(self) -> tuple[tuple[int, ...], int, int]:
        """Return the shape, the type and the place of a tensor."""
        (num_dims,) = self._numbers("I", 1)
        if not 0 < num_dims <= _MAX_DIMS:
            raise ValueError(f"a tensor has {num_dims} dimensions")
        shape = self._numbers("Q", num_dims)[::-1]
        number, offset = *self._numbers("I", 1), *self._numbers("Q", 1)
        return shape, number, offset

    def _value(self, kind: int, *, is_nested: bool = False) -> Any:
        """Return a value of a type."""
        if kind in _NUMBERS:
            return _plain(_NUMBERS[kind], self._numbers(_NUMBERS[kind], 1))[0]
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY or is_nested:
            raise ValueError(f"it has a value of type {kind}")
        (inner,), (count,) = self._numbers("I", 1), self._numbers("Q", 1)
        if inner in _NUMBERS:
            return _plain(_NUMBERS[inner], self._numbers(_NUMBERS[inner], count))
        return [self._value(inner, is_nested=True) for _ in self._counted(count, 8)]

    def _text(self) -> str:
        (length,) = self._numbers("Q", 1)
        # Texts of tokens may be cut within a character; a key is never.
        return self._bytes(length).decode("utf-8", "surrogateescape")

    def _counted(self, count: int, least: int) -> range:
        """Return a range of things that take so many bytes at least: a count may be damaged."""
        if count * least > self._size - self._at:
            raise ValueError(
                f"it is truncated: {count:,} values do not fit behind byte {self._at:,}"
            )
        return range(count)

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(code)
        self._counted(count, size)
        found = struct.unpack_from(f"<{count}{code}", self._data, self._at)
        self._at += count * size
        return found

    def _bytes(self, count: int) -> bytes:
        self._counted(count, 1)
        found = self._data[self._at : self._at + count]
        self._at += count
        return found


def _plain(code: str, numbers: tuple[Any, ...]) -> list[Any]:
    """Return numbers as a `config.json` has them: 1e-06, not the float32 next to it."""
    return [float(str(np.float32(one))) for one in numbers] if code == "f" else list(numbers)
