"""Large arrays in the host's memory: copied, converted and checked in blocks that fit a cache.

numpy alone transposes a matrix of bfloat16 at 0.2 GB/s, and asks whether it is finite at 0.8. jax
transposes what it takes from the host, at twice the speed of numpy on blocks that fit a cache.
"""

import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import jax
import numpy as np

from axcore.errors import CheckpointError
from axcore.hardware.host_memory import host_bytes

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# Reading and converting are bound by memory; more than four threads only wait for it.
_THREADS = min(4, os.cpu_count() or 1)
# In a cache of the second level, so that looking for infinities reads what was just written.
_BLOCK = 1 << 16
"""Numbers that are looked at together."""
# Both of a tile's sides are read in runs: columns of one and rows of the other.
_TILE_COLUMNS = 256
_TILE_BYTES = 1 << 20
"""Of what is transposed at once."""
_PIECE_BYTES = 1 << 24
# What XLA's CPU client wants of a buffer that it takes as it is.
_ALIGNED_BYTES = 64


def copy(source: np.ndarray, target: np.ndarray) -> bool:
    """Copy numbers in the target's dtype, up to one that is not finite there; say if none is."""
    source, target = np.atleast_1d(source), np.atleast_1d(target)
    move = _copy_tile if _is_transposed(source) else _copy_block
    blocks = _tiles if _is_transposed(source) else _rows
    with np.errstate(over="ignore"):  # looked for next
        return all(move(source[at], target[at]) for at in blocks(source))


def is_finite(array: np.ndarray) -> bool:
    """Whether all numbers are, as far as the dtype has others."""
    array = np.atleast_1d(array)
    if not _not_finite_bits(array.dtype):
        return True
    return all(_is_finite(array[at]) for at in _rows(array))


def are_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same dtype, shape and bits."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    a, b = np.atleast_1d(_bits(a)), np.atleast_1d(_bits(b))
    return all(np.array_equal(a[at], b[at]) for at in _rows(a))


def empty_array(shape: Iterable[int], dtype: Any) -> np.ndarray:
    """Return an array that jax takes over without a copy, where a device is a processor."""
    shape = tuple(shape)
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    # `np.empty` promises 16 bytes only.
    raw = np.empty(nbytes + _ALIGNED_BYTES, np.uint8)
    begin = -raw.ctypes.data % _ALIGNED_BYTES
    array: np.ndarray = raw[begin : begin + nbytes].view(dtype).reshape(shape)
    return array


def pieces(array: np.ndarray) -> Iterator[slice]:
    """Yield ranges of the first dimension, so that several threads work on one large array."""
    count = max(1, _PIECE_BYTES // max(1, array[:1].nbytes))
    yield from (slice(i, i + count) for i in range(0, len(array), count))


def map_ahead(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield the results of a function in order; threads work on the next ones meanwhile."""
    with ThreadPoolExecutor(_THREADS) as pool:
        pending: deque[Future[_Result]] = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            # A bounded queue: results may be gigabytes, and the reader may be slower.
            if len(pending) > _THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _is_transposed(array: np.ndarray) -> bool:
    # By strides: a transposed view is stored by columns, and
    # copying it row by row misses the cache at each number.
    return array.ndim == 2 and array.strides[0] < array.strides[1]


def _rows(array: np.ndarray) -> Iterator[Any]:
    count = max(1, _BLOCK // max(1, array[:1].size))
    yield from (slice(i, i + count) for i in range(0, len(array), count))


def _tiles(array: np.ndarray) -> Iterator[Any]:
    (height, width), columns = array.shape, _TILE_COLUMNS
    rows = _TILE_BYTES // (columns * array.itemsize)
    for i in range(0, height, rows):
        yield from (np.s_[i : i + rows, j : j + columns] for j in range(0, width, columns))


def _copy_block(source: np.ndarray, target: np.ndarray) -> bool:
    if source.dtype == target.dtype:
        # As whole numbers, which numpy copies faster than a dtype of ml_dtypes.
        _bits(target)[...] = _bits(source)
    else:
        target[...] = source
    return is_finite(target)


def _copy_tile(source: np.ndarray, target: np.ndarray) -> bool:
    if source.dtype != target.dtype:
        packed = np.empty(source.shape[::-1], target.dtype)
        # Converted in its own order first, and then turned, which is faster on narrower numbers.
        packed[...] = source.T
        source = packed.T
    numbers = _in_rows(_bits(source))
    _bits(target)[...] = numbers
    return _is_finite(numbers.view(target.dtype))


def _in_rows(columns: np.ndarray) -> np.ndarray:
    """Return a block that was stored by columns stored by rows."""
    device = host_device()
    if device is None or columns.dtype.itemsize > 4:  # jax would halve these
        return np.ascontiguousarray(columns)
    # XLA's transpose uses all of the processor's vector units, and numpy's none.
    return np.asarray(jax.device_put(columns, device))


@cache
def host_device() -> jax.Device | None:
    """Return a processor of this process; None where jax may use none."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _is_finite(block: np.ndarray) -> bool:
    mask = _not_finite_bits(block.dtype)
    if not block.size or not mask:
        return True
    # All bits of the exponent set is what infinity and nan have in common;
    # a maximum over masked integers needs no dtype that numpy lacks.
    return bool(np.bitwise_and(_bits(block), mask).max() < mask)


@cache
def _not_finite_bits(dtype: np.dtype[Any]) -> Any:
    """Return the bits that are set in every number that is not finite; 0 if there is none."""
    if dtype.kind in "biu":
        return 0
    # Infinity has just these bits; where a dtype has none, it becomes nan, which has them as well.
    return _bits(np.array(np.inf).astype(dtype))[()]


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


_GIB = 2**30


def check_host_holds(leaves: Iterable[Any]) -> None:
    """Check that there is memory for what host processors keep of some arrays.

    Args:
        leaves: Descriptions of the arrays: shapes, dtypes and shardings.

    Raises:
        CheckpointError: There is not.
    """
    needed = Counter[str]()
    for leaf in leaves:
        needed[np.dtype(leaf.dtype).name] += _host_bytes_of(leaf)
    if needed.total() <= host_bytes():
        return
    parts = ", ".join(f"{size / _GIB:.3g} GiB as {dtype}" for dtype, size in needed.items() if size)
    raise CheckpointError(
        f"the weights need {needed.total() / _GIB:.3g} GiB of the host's memory ({parts}), which "
        f"has {host_bytes() / _GIB:.3g} GiB",
        hint="ask for a dtype of fewer bytes, or read them on a larger host, or on devices with "
        "memory of their own",
    )


def _host_bytes_of(leaf: Any) -> int:
    """Return the bytes of an array that host processors of this process will keep."""
    if leaf.sharding is None:
        devices, shape = jax.local_devices()[:1], leaf.shape
    else:
        devices, shape = leaf.sharding.addressable_devices, leaf.sharding.shard_shape(leaf.shape)
    num_hosts = len([one for one in devices if one.platform == "cpu"])
    return int(num_hosts * math.prod(shape) * np.dtype(leaf.dtype).itemsize)
