"""Random numbers of the ops' test cases, or none of them where only shapes are asked for."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

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
    """Draws nothing; its arrays have the shapes and dtypes that a generator's would have."""

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
