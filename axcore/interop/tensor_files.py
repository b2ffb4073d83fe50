"""Safetensors files: what is in them, checked against their sizes, and tensors by name.

A file is 8 bytes of length, a header of JSON, and the tensors' bytes. Tensors are memory-mapped, so
that only what is looked at is read; and they are written one at a time.

Source: the format's description at github.com/huggingface/safetensors.
"""

import json
import math
import shutil
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeGuard

import attrs
import jax.numpy as jnp
import numpy as np

from axcore.config.json_files import check_is_fetched, parse_json, read_json
from axcore.errors import CheckpointError
from axcore.interop.tensor_place import TensorPlace
from axcore.interop.torch_files import tensors_in_bin
from axcore.progress import working
from axcore.whole_files import open_regular

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_BIN_SINGLE, _BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E5M2": jnp.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
DTYPES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_LENGTH = struct.Struct("<Q")
# The limit of the reference library: a damaged length must not be allocated.
_MAX_HEADER_BYTES = 100_000_000


def find_tensors(folder: Path) -> dict[str, TensorPlace]:
    """Return the places of all tensors of a pretrained checkpoint, by name.

    Raises:
        CheckpointError: Naming every file that is missing, truncated or damaged, and every tensor
            that is in two files or not where the index says.
    """
    # Of a model that is in both formats, the one that cannot contain programs.
    for single, index, read in (
        (SINGLE, INDEX, tensors_in),
        (_BIN_SINGLE, _BIN_INDEX, tensors_in_bin),
    ):
        if (folder / single).is_file():
            return read(folder / single)
        if (folder / index).is_file():
            return _indexed(folder, folder / index, read)
    raise CheckpointError(
        f"the folder has neither {SINGLE} nor {INDEX}",
        where=str(folder),
        hint="name a folder that contains a model's files, or a GGUF file; other formats are not "
        "read",
    )


def _index(path: Path) -> dict[str, str]:
    content = read_json(path, path.name, error=CheckpointError)
    try:
        found: dict[str, str] = content["weight_map"]
        return {str(name): str(file) for name, file in found.items()}
    except (KeyError, AttributeError) as error:
        raise CheckpointError(f"{path.name} is damaged: {error!r}", where=str(path)) from error


def _indexed(
    folder: Path, path: Path, read: Callable[[Path], dict[str, TensorPlace]]
) -> dict[str, TensorPlace]:
    found: dict[str, TensorPlace] = {}
    index = _index(path)
    problems = []
    for file in sorted(set(index.values())):
        if Path(file).name != file:  # an index from elsewhere must not name ../secrets
            problems.append(f"{path.name} names {file!r}, which is not a file of the folder")
            continue
        try:
            here = read(folder / file)
        except CheckpointError as error:
            problems.append(error.what)
            continue
        problems += [
            f"{name} is in {found[name].file.name} and {file}"
            for name in found.keys() & here.keys()
        ]
        found |= here
        wanted = {name for name, place in index.items() if place == file}
        problems += [f"{name} is not in {file}" for name in sorted(wanted - here.keys())]
    if problems:
        raise CheckpointError(
            "\n".join(problems), where=str(folder), hint="fetch these files again"
        )
    return found


def tensors_in(path: Path) -> dict[str, TensorPlace]:
    """Return the places of a file's tensors.

    Raises:
        CheckpointError: It is missing, or not whole.
    """
    try:
        check_is_fetched(path, error=CheckpointError)
        with open_regular(path) as file:
            header, begin = _header(file), file.tell()
        _check_metadata(header.pop("__metadata__", {}))
        found = {name: _place(path, name, entry, begin) for name, entry in header.items()}
        _check_places(found, begin, path.stat().st_size)
    except OSError as error:
        what = f"{path.name} cannot be read: {error.strerror}"
        raise CheckpointError(what, where=str(path)) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path.name} cannot be read: {error}", where=str(path), hint="fetch the file again"
        ) from error
    return found


def _header(file: IO[bytes]) -> dict[str, Any]:
    start = file.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        raise ValueError(f"it has {len(start)} bytes, and the length of its header alone takes 8")
    (length,) = _LENGTH.unpack(start)
    if length > _MAX_HEADER_BYTES:
        raise ValueError(
            f"its header would have {length:,} bytes; at most {_MAX_HEADER_BYTES:,} are read"
        )
    # Read before it is parsed, and by its length, so a damaged length shows here.
    text = file.read(length)
    if len(text) < length:
        raise ValueError(f"it ends within its header, at byte {_LENGTH.size + len(text)}")
    # The format asks for it; JSON alone would accept spaces before, or a list.
    if not text.startswith(b"{"):
        raise ValueError(f"its header begins with {text[:8]!r}, and not with an object of JSON")
    try:
        header: dict[str, Any] = parse_json(text)
    except ValueError as error:
        raise ValueError(f"its header is not JSON: {error}") from error
    return header


def _check_metadata(metadata: object) -> None:
    texts = metadata.values() if isinstance(metadata, dict) else [None]
    if not all(isinstance(one, str) for one in texts):
        raise ValueError(f"its __metadata__ is {_shown(metadata)}, and not texts by name")


def _place(path: Path, name: str, entry: Any, begin: int) -> TensorPlace:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = [fields.get(key) for key in ("dtype", "shape", "data_offsets")]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"{_shown(name)} has numbers of type {_shown(dtype)}")
    if not _are_counts(shape):
        raise ValueError(f"{_shown(name)} has the shape {_shown(shape)}")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{_shown(name)} has the data_offsets {_shown(offsets)}")
    place = TensorPlace(path, np.dtype(_DTYPES[dtype]), tuple(shape), begin + offsets[0])
    if place.nbytes != offsets[1] - offsets[0]:
        raise ValueError(
            f"{_shown(name)} has {offsets[1] - offsets[0]} bytes, which are not of shape "
            f"{_shown(shape)} and type {dtype}"
        )
    return place


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    """Whether a value is a list of numbers that a size can be; of 64 bits, as in the format."""
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 2**64 for one in value)


def _shown(value: object) -> str:
    """Return the beginning of a value: a name may have a megabyte."""
    return f"{value if isinstance(value, str) else repr(value):.80}"


def _check_places(places: Mapping[str, TensorPlace], begin: int, size: int) -> None:
    """Check that the tensors fill the file after its header, each byte once.

    Otherwise the header, or another tensor, would be read as weights.
    """
    end = begin
    for name, place in sorted(places.items(), key=lambda item: (item[1].begin, item[1].nbytes)):
        if place.begin != end:
            what = "overlaps with" if place.begin < end else "leaves a hole after"
            raise ValueError(
                f"{_shown(name)} {what} the bytes before it: it begins at {place.begin:,}, "
                f"and they end at {end:,}"
            )
        end += place.nbytes
    # Both matter: a file that is cut has lost weights, and
    # one that is longer is not what its header describes.
    if size != end:
        what = "truncated" if size < end else "too long"
        raise ValueError(f"it is {what}: {size:,} bytes, where its header says {end:,}")


@attrs.frozen
class TensorSpec:
    """A tensor that is to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


def shards(specs: Iterable[TensorSpec], max_bytes: int) -> dict[str, list[TensorSpec]]:
    """Return what goes into each file, in order; a tensor larger than a file has one alone."""
    groups: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        if groups[-1] and size + spec.nbytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(spec)
        size += spec.nbytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    count = f"{len(groups):05}"
    return {f"model-{i:05}-of-{count}.safetensors": one for i, one in enumerate(groups, start=1)}


def write_tensors(path: Path, specs: Iterable[TensorSpec], pieces: Iterator[np.ndarray]) -> None:
    """Write a file, taking tensors from an iterator, piece by piece in the order of the specs."""
    specs, header, end = list(specs), {}, 0
    for spec in specs:
        entry = {"dtype": DTYPES[spec.dtype], "shape": list(spec.shape)}
        header[spec.name] = {**entry, "data_offsets": [end, end + spec.nbytes]}
        end += spec.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned where they are memory-mapped
    with path.open("wb") as file, working(f"writing {path.name}", end) as work:
        file.write(_LENGTH.pack(len(text)) + text)
        for spec in specs:
            left = spec.nbytes
            while left:
                piece = next(pieces)
                # As bytes: bfloat16 has no buffer protocol.
                file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
                left -= piece.nbytes
                work.add(piece.nbytes)
            assert left == 0, spec


def write_index(folder: Path, files: Mapping[str, Iterable[TensorSpec]]) -> None:
    """Write the index of a model in several files."""
    places = {spec.name: file for file, specs in files.items() for spec in specs}
    total = sum(spec.nbytes for specs in files.values() for spec in specs)
    content = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def new_folder(folder: Path | str) -> Iterator[Path]:
    """Yield a draft of a folder, which takes its place when the context ends without an error.

    Raises:
        CheckpointError: The folder is not empty.
    """
    target = Path(folder).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            "the folder is not empty",
            where=str(target),
            hint="name a new folder",
        )
    draft = _draft_of(target)
    draft.mkdir(parents=True)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft)
        raise
    # An empty folder is allowed as a target, and `rename` does not replace one everywhere.
    if target.exists():
        target.rmdir()
    draft.rename(target)


@contextmanager
def new_file(path: Path | str) -> Iterator[Path]:
    """Yield the draft of a file, which takes its place when the context ends without an error.

    Raises:
        CheckpointError: The file already exists.
    """
    target = Path(path).expanduser().absolute()
    if target.exists():
        raise CheckpointError("file already exists", where=str(target), hint="name a new file")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(target)
    try:
        yield draft
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)


def _draft_of(target: Path) -> Path:
    # Next to the target, since a rename works within one file system only.
    return target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.incomplete")
