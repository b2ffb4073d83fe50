"""Random arrays, and calls of models compiled once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_call import call_compiled


@pytest.fixture
def random() -> Callable[..., np.ndarray]:
    """Return `random(*shape)`, normal float32 samples, the same in every run."""
    generator = np.random.default_rng(0)
    return lambda *shape: generator.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="session")
def call() -> Callable[..., Any]:
    """Return `call(module, state, *args)`, the module's result as numpy arrays."""
    return call_compiled
