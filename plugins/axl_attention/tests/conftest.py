"""Running layers and models in tests: each compiled once, without optimisation."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from compiled_call import call_compiled
from numpy_state import numpy_state

from axcore.layers import TokenInfo
from axcore.module import functional

BATCH, TIME, VOCAB = 2, 8, 264


@pytest.fixture
def random() -> Callable[..., np.ndarray]:
    """Return `random(*shape)`, normal float32 samples, the same in every run."""
    generator = np.random.default_rng(0)
    return lambda *shape: generator.normal(size=shape).astype(np.float32)


@pytest.fixture
def packed() -> TokenInfo:
    """Two rows of 8 tokens: documents of 3 and 5, and one of 6 with padding."""
    positions = np.array([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 0]], np.int32)
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0, 0]], np.int32)
    return TokenInfo(positions, segments)


@pytest.fixture
def whole() -> TokenInfo:
    """Two rows of 8 tokens, a document each."""
    return TokenInfo(np.broadcast_to(np.arange(TIME, dtype=np.int32), (BATCH, TIME)))


@pytest.fixture(scope="session")
def call() -> Callable[..., Any]:
    """Return `call(module, state, *args)`, the module's result as numpy arrays."""
    return call_compiled


@pytest.fixture(scope="session")
def run_model() -> Callable[[Any], Callable[..., Any]]:
    """Return a function from a model's config to a state of it and `run(state, tokens)`.

    `run` returns loss, gradient and logits of tokens `[batch, time]`, each row one document.
    """

    def built(cfg: Any) -> Any:
        model = cfg.build()

        def loss(state: Any, tokens: Any) -> Any:
            logits, outputs = functional(model, state, tokens, method="logits")
            logits = logits.reshape(tokens.size, -1)
            targets = np.roll(np.arange(tokens.size) % 7, 1)
            picked = jax.nn.log_softmax(logits)[np.arange(tokens.size), targets]
            value = -picked.mean() + (outputs.total_loss() if outputs.losses else 0.0)
            return value, logits.reshape(*tokens.shape, -1)

        def run(state: Any, tokens: Any) -> Any:
            (value, logits), gradient = jax.value_and_grad(loss, has_aux=True)(state, tokens)
            return value, gradient, logits

        return numpy_state(model.param_specs()), jax.jit(run)

    return built


@pytest.fixture(scope="session")
def state_of() -> Callable[[Any], Any]:
    """Return a function from a module to a state in which no norm is one."""
    return lambda module: numpy_state(module.param_specs())
