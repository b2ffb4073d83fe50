"""Files mapped into memory without a descriptor each, so that thousands can be open at a time."""

import ctypes
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axcore.whole_files import check_is_regular

_PROT_READ, _MAP_SHARED = 1, 1


def map_file(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    """Returns `length` values of a file, read-only; the mapping ends with the last view of it.

    Differs: `numpy.memmap` and `mmap` keep the file open up to Python 3.12, and a process may have
    1024 files open by default.

    Raises:
        OSError: The file cannot be read or mapped.
    """
    size = length * dtype.itemsize
    if not size:
        return np.zeros(0, dtype)
    check_is_regular(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = _MMAP(None, size, _PROT_READ, _MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)
    memory: Any = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, _MUNMAP, address, size).atexit = False
    array: NDArray[Any] = np.ndarray((length,), dtype, buffer=memory)
    array.flags.writeable = False
    return array


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype, function.argtypes = result, arguments
    return function


_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_MMAP = _function("mmap", _POINTER, _POINTER, _SIZE, _INT, _INT, _INT, ctypes.c_long)
_MUNMAP = _function("munmap", _INT, _POINTER, _SIZE)
