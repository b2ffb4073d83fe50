"""Running a layer in a test: one compiled call of a module built from its config."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from compiled_call import call_compiled


@pytest.fixture(scope="session")
def call() -> Callable[..., Any]:
    """Returns `call(module, state, *args)`, the module's result as numpy arrays."""
    return call_compiled


@pytest.fixture
def random() -> Callable[..., np.ndarray]:
    """Returns `random(*shape)`, normal float32 samples, the same in every run."""
    generator = np.random.default_rng(0)
    return lambda *shape: generator.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="session")
def perturbed() -> Callable[[Any], Any]:
    """Returns a function that adds noise to a state, so that no weight is one and no bias zero."""
    generator = np.random.default_rng(1)

    def perturbed(state: Any) -> Any:
        noise = lambda x: 0.3 * generator.normal(size=x.shape).astype(x.dtype)  # noqa: E731
        return jax.tree.map(lambda x: np.asarray(x) + noise(x), state)

    return perturbed
