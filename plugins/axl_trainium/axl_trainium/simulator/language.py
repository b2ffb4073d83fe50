"""Replaces `nki.language`: dtypes, memories, operators and allocation.

Operators are functions of float32 arrays; those of the Scalar Engine take one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from axcore.errors import KernelError
from axl_trainium.simulator.machine import DTYPES, Array, Memory, current_machine
from axl_trainium.simulator.tensor import LoopIndex, Tensor

float32, bfloat16, float16, int32 = "float32", "bfloat16", "float16", "int32"

sbuf, psum, shared_hbm = Memory.SBUF, Memory.PSUM, Memory.HBM

add, subtract, multiply, maximum, minimum = (
    np.add,
    np.subtract,
    np.multiply,
    np.maximum,
    np.minimum,
)

equal, less, less_equal, greater, greater_equal = (
    np.equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
)

exp, log, square, tanh = np.exp, np.log, np.square, np.tanh


def copy(x: Array) -> Array:
    """Return `x`."""
    return x


def rsqrt(x: Array) -> Array:
    """Return one over the square root."""
    return np.float32(1) / np.sqrt(x)


COMPARISONS = frozenset({equal, less, less_equal, greater, greater_equal})
BINARY = frozenset({add, subtract, multiply, maximum, minimum}) | COMPARISONS
REDUCTIONS = frozenset({add, multiply, maximum, minimum})
ACTIVATIONS = frozenset({copy, exp, log, rsqrt, square, tanh})


def ndarray(
    shape: tuple[int, ...],
    dtype: str,
    buffer: Memory = Memory.SBUF,
    name: str = "",
    address: None = None,
) -> Tensor:
    """Return a new tensor, poisoned."""
    if address is not None:
        raise KernelError("the simulator chooses addresses itself; leave address out.")
    if dtype not in DTYPES:
        raise KernelError(f"dtype is {dtype!r}; the simulator knows {list(DTYPES)}.")
    if len(shape) < 2 or any(not isinstance(size, int) or size < 1 for size in shape):
        raise KernelError(f"shape is {shape}; expected two or more sizes of at least 1.")
    return Tensor.of(current_machine().allocate(tuple(shape), dtype, buffer), buffer)


def fori_loop(lower: int, upper: int, body_fun: Callable[[Any], None], step: int = 1) -> None:
    """Call the body with each index, which the body can use to address memory and no more."""
    for value in range(lower, upper, step):
        body_fun(LoopIndex(value))
