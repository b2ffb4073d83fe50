"""What the contracts of all ops share: tolerances, numbers of test cases, sizes of typical calls.

A contract is what a kernel must do. The `contract.py` of an op has its test cases, small and odd,
and its `arg_spec`: the call that a train step in bfloat16, or the serving of its model, makes.
`axcore kernels` asks kernels about these.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from axcore.ops.dispatch import Call

ROWS, TOKENS, DIM, VOCAB = 2, 4096, 4096, 32000
HEADS, KEY_HEADS, HEAD_DIM = 32, 8, 128
EXPERTS, HIDDEN_DIM = 8, 14336
"""Sizes of a model of 7 to 8 billion parameters, with two rows of 4096 tokens on a device."""


@attrs.frozen
class Tolerance:
    """Largest error of an array, as a share of the reference's largest entry (or of 1)."""

    forward: float
    backward: float


TOLERANCES = {
    "float32": Tolerance(forward=1e-5, backward=2e-5),
    "bfloat16": Tolerance(forward=1e-2, backward=2e-2),
}
"""Float32 allows for another order of summation; bfloat16 for rounding what is multiplied."""


def relative_error(actual: Array, expected: Array) -> float:
    """Return the largest difference over the largest finite entry of `expected`, at least 1.

    Infinities must agree in place and sign; NaN anywhere is an infinite error.
    """
    got, want = (np.asarray(x).astype(np.float64) for x in (actual, expected))
    if got.shape != want.shape:
        raise ValueError(f"shapes differ: {got.shape} and {want.shape}")
    is_finite = np.isfinite(want)
    if np.isnan(got).any() or not np.array_equal(got[~is_finite], want[~is_finite]):
        return float("inf")
    largest = np.abs(want[is_finite]).max(initial=1.0)
    return float(np.abs(got[is_finite] - want[is_finite]).max(initial=0.0) / largest)


_ONLY_SHAPES = ContextVar("only_shapes", default=False)


def case_numbers(name: str) -> np.random.Generator:
    """Return the numbers of a case, equal each time."""
    return _Zeros() if _ONLY_SHAPES.get() else np.random.default_rng(len(name))


@contextlib.contextmanager
def only_shapes() -> Iterator[None]:
    """Let cases be made of zeros: drawing the numbers of one as large as models' takes seconds."""
    token = _ONLY_SHAPES.set(True)
    try:
        with np.errstate(all="ignore"):  # cases divide by what they drew
            yield
    finally:
        _ONLY_SHAPES.reset(token)


class _Zeros(np.random.Generator):
    """Samples nothing; its arrays have the shapes and dtypes that a generator's would have."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def standard_normal(self, size: Any = None, dtype: Any = np.float64) -> Any:  # type: ignore[override]
        return np.zeros(size, dtype)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return np.zeros(size)

    def integers(self, low: Any, high: Any = None, size: Any = None) -> Any:  # type: ignore[override]
        return np.zeros(size, np.int64)

    def permutation(self, x: Any) -> Any:  # type: ignore[override]
        return np.arange(x)


def spec_array(*shape: int, dtype: DTypeLike = jnp.bfloat16) -> Array:
    """Return an array of a typical call, whose numbers do not matter."""
    return jnp.zeros(shape, dtype)


def traced_call(make: Callable[[], Call]) -> Call:
    """Return the call made under tracing, where arrays take no memory."""
    calls: list[Call] = []

    def trace() -> tuple[()]:
        calls.append(make())
        return ()

    jax.eval_shape(trace)
    return calls[0]


def backward_call(call: Call) -> Call:
    """Return the call that backward kernels are asked about."""
    return attrs.evolve(call, op=f"{call.op}_backward")
