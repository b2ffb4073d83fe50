"""PyTorch's `.bin` files, read without PyTorch and without running anything that is in them.

Such a file is a zip archive: a pickle that says what tensors there are, and the bytes of each
storage. A pickle may name any function to call. Here it may name those that make tensors, which
only say where a tensor's bytes are; any other name is an error before it is looked up.

Source: `torch/serialization.py`; `torch.load(weights_only=True)`.
"""

import io
import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from axcore.config.json_files import check_is_fetched
from axcore.errors import CheckpointError
from axcore.interop.tensor_place import TensorPlace
from axcore.whole_files import open_regular

_STORAGES: dict[str, Any] = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": jnp.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
# A few hundred bytes a tensor; what is larger is not such a pickle.
_MAX_PICKLE_BYTES = 100_000_000
# fmt: off
_OPCODES = frozenset((
    "PROTO", "FRAME", "STOP", "MARK", "POP", "GLOBAL", "STACK_GLOBAL", "BINPERSID", "REDUCE",
    "BUILD", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS", "BINGET",
    "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE",
))
# fmt: on
"""What is in pickles of tensors."""
_LOCAL_HEADER = 30
"""Bytes of what a zip archive has before each file, without its name."""


# Tuples: a pickle may set attributes of what it made, and these have none that can be set.
class _Dtype(NamedTuple):
    """What a class of storages is read as."""

    dtype: np.dtype[Any]


class _Storage(NamedTuple):
    """The bytes of one or several tensors."""

    dtype: np.dtype[Any]
    begin: int
    nbytes: int


class _Tensor(NamedTuple):
    """What a tensor is read as."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def tensors_in_bin(path: Path) -> dict[str, TensorPlace]:
    """Return the places of the tensors of a `.bin` file.

    Raises:
        CheckpointError: It is missing or damaged, or contains something else than tensors.
    """
    try:
        check_is_fetched(path, error=CheckpointError)
        with open_regular(path) as file:
            return _places(path, file)
    except OSError as error:
        what = f"{path.name} cannot be read: {error.strerror or error}"
        raise CheckpointError(what, where=str(path), hint="fetch the file again") from error
    # A pickle that is damaged raises nearly anything.
    except Exception as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{path.name} cannot be read: {error}",
            where=str(path),
            hint="fetch the model as safetensors; transformers' save_pretrained writes them",
        ) from error


def _places(path: Path, file: IO[bytes]) -> dict[str, TensorPlace]:
    if not zipfile.is_zipfile(file):
        raise ValueError("it is not a zip archive, which PyTorch writes since version 1.6")
    with zipfile.ZipFile(file) as archive:
        members = {one.filename.partition("/")[2]: one for one in archive.infolist()}
        order = members.get("byteorder")
        if order is not None and (
            order.file_size != len(b"little") or archive.read(order) != b"little"
        ):
            raise ValueError("its numbers are big-endian")
        described = members.get("data.pkl")
        if described is None or described.file_size > _MAX_PICKLE_BYTES:
            raise ValueError("it has no data.pkl of a sensible size, in which tensors are named")
        data = archive.read(described)
        _check_opcodes(data)
        content = _Reader(io.BytesIO(data), members, file).load()
    return {name: _place(path, name, one) for name, one in _named(content).items()}


def _check_opcodes(data: bytes) -> None:
    """Check that a pickle has what PyTorch writes, and no number that costs memory by itself.

    Raises:
        ValueError: It has something else.
    """
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if opcode.name not in _OPCODES:
            raise ValueError(f"its pickle has {opcode.name}, which PyTorch does not write")
        # What is remembered is kept in an array as long as the largest number.
        if opcode.name.endswith("PUT") and int(argument or 0) > count:
            raise ValueError(f"its pickle remembers {argument:,} objects of {count:,}")


def _named(content: Any) -> Mapping[str, _Tensor]:
    """Return tensors by name, of a state or of what a trainer saved with one.

    Raises:
        ValueError: There are none, or something else is among them.
    """
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise ValueError("it has no tensors by name")
    others = [name for name, one in content.items() if not isinstance(one, _Tensor)]
    if others:
        raise ValueError(f"{others[0]!s:.80} is not a tensor")
    return {str(name): one for name, one in content.items()}


def _place(path: Path, name: str, tensor: _Tensor) -> TensorPlace:
    dtype, storage = tensor.storage.dtype, tensor.storage
    place = TensorPlace(path, dtype, tensor.shape, storage.begin + tensor.offset * dtype.itemsize)
    strides = [math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape))]
    # A stride of a dimension of one says nothing.
    pairs = zip(tensor.shape, tensor.strides, strides, strict=True)
    if any(size > 1 and own != plain for size, own, plain in pairs):
        raise ValueError(f"{name:.80} is stored as a view with strides {list(tensor.strides)}")
    if tensor.offset < 0 or place.begin + place.nbytes > storage.begin + storage.nbytes:
        raise ValueError(f"{name:.80} is not within the bytes that it is said to be in")
    return place


class _Reader(pickle.Unpickler):
    """Reads a pickle in which functions that make tensors are the only names."""

    def __init__(
        self, data: IO[bytes], members: Mapping[str, zipfile.ZipInfo], file: IO[bytes]
    ) -> None:
        super().__init__(data)
        self._members, self._file = members, file

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name is read as.

        Raises:
            ValueError: It is none of those that make tensors.
        """
        found = _ALLOWED.get((module, name))
        if module == "torch" and name in _STORAGES:
            return _Dtype(np.dtype(_STORAGES[name]))
        if found is None:
            raise ValueError(f"it would run {module}.{name}, which does not make a tensor")
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        """Return where a storage is.

        Raises:
            ValueError: It is not in the archive, or packed.
        """
        kind, dtype, key, _, count = pid
        member = self._members.get(f"data/{key}")
        if kind != "storage" or not isinstance(dtype, _Dtype) or member is None:
            raise ValueError(f"it names the storage {key!s:.80}, which it does not have")
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"its storage {key:.80} is compressed")
        nbytes = int(count) * dtype.dtype.itemsize
        if nbytes > member.file_size:
            raise ValueError(f"its storage {key:.80} has {member.file_size:,} of {nbytes:,} bytes")
        return _Storage(dtype.dtype, self._begin(member), nbytes)

    def _begin(self, member: zipfile.ZipInfo) -> int:
        """Return the first byte of a member's content."""
        self._file.seek(member.header_offset)
        header = self._file.read(_LOCAL_HEADER)
        # Its own lengths, since those of the archive's directory may differ.
        name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        begin = member.header_offset + _LOCAL_HEADER + name + extra
        size = self._file.seek(0, io.SEEK_END)
        if len(header) < _LOCAL_HEADER or begin + member.file_size > size:
            raise ValueError("it is truncated")
        return begin


def _tensor(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> _Tensor:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError("a tensor is described by something else than counts")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
}
"""What a pickle may call, by module and name."""
