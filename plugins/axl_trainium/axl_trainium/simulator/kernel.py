"""`jit`: runs a kernel on numpy arrays."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from axcore.errors import KernelError
from axl_trainium.simulator.machine import DTYPES, Array, Memory, Storage, running
from axl_trainium.simulator.tensor import Tensor


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel as a function of numpy arrays and static values to numpy arrays."""

    @functools.wraps(function)
    def kernel(*args: Any, **choices: Any) -> Any:
        with running():
            results = function(*(_argument(arg) for arg in args), **choices)
            if isinstance(results, tuple):
                return tuple(_result(one) for one in results)
            return _result(results)

    return kernel


def _argument(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype not in DTYPES.values():
        raise KernelError(f"a kernel was given {value.dtype}; the simulator knows {list(DTYPES)}.")
    storage = Storage.holding(np.ascontiguousarray(value))
    return Tensor.of(storage, Memory.HBM, is_argument=True)


def _result(value: Any) -> Array:
    if not isinstance(value, Tensor) or value.memory is not Memory.HBM or value.is_argument:
        raise KernelError(
            f"a kernel returned {type(value).__name__}; expected tensors that it allocated in "
            "nl.shared_hbm."
        )
    return value.read("the kernel's return").copy()
