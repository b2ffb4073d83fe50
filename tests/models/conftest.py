"""One small model for all tests, and its functions, compiled once per config."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.layers import TokenInfo
from axcore.models import transformer
from axcore.module import functional

VOCAB, TIME = 17, 8


class Runner:
    """Runs models by their config; equal configs and shapes share one compiled program."""

    @functools.cache  # noqa: B019 - lives as long as the session
    def module(self, cfg: Any) -> Any:
        return cfg.build()

    @functools.cache  # noqa: B019
    def _state(self, cfg: Any) -> Any:
        return numpy_state(self.module(cfg).param_specs())

    def state(self, cfg: Any) -> Any:
        """A state in which no norm is one and no bias zero."""
        return jax.tree.map(lambda x: x, self._state(cfg))

    @functools.cache  # noqa: B019
    def _compiled(self, cfg: Any) -> Callable[..., Any]:
        module = self.module(cfg)

        def loss(state: Any, batch: Any) -> Any:
            pair, outputs = functional(module, state, batch)
            return outputs.total_loss(), (pair, outputs.losses)

        def run(state: Any, batch: Any) -> Any:
            (total, (pair, losses)), gradient = jax.value_and_grad(loss, has_aux=True)(state, batch)
            info = TokenInfo(batch["positions"], batch["segment_ids"])
            logits, _ = functional(module, state, batch["tokens"], info, method="logits")
            return {
                "total": total,
                "pair": pair,
                "losses": losses,
                "gradient": gradient,
                "logits": logits,
            }

        return jax.jit(run)

    def __call__(self, cfg: Any, state: Any, batch: Any) -> dict[str, Any]:
        """Returns `total`, `pair` (sum and weight), `losses`, `gradient` and `logits`."""
        return jax.device_get(self._compiled(cfg)(state, batch))


@pytest.fixture(scope="session")
def run() -> Runner:
    return Runner()


@pytest.fixture(scope="session")
def cfg() -> Any:
    return transformer(
        vocab_size=VOCAB, dim=16, num_layers=2, num_heads=4, num_kv_heads=2, hidden_dim=24
    )


@pytest.fixture
def batch() -> dict[str, Any]:
    """Two rows of packed documents: 3 + 5 tokens, and 6 tokens with padding."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, VOCAB, (2, TIME)).astype(np.int32)
    return {
        "tokens": tokens,
        "targets": generator.integers(0, VOCAB, (2, TIME)).astype(np.int32),
        "positions": np.array([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 0]], np.int32),
        "segment_ids": np.array([[1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0, 0]], np.int32),
        "loss_weights": np.array([[1, 1, 0, 1, 1, 1, 1, 0.5], [1] * 5 + [0] * 3], np.float32),
    }


@pytest.fixture(scope="session")
def whole_rows() -> Callable[[Any], dict[str, Any]]:
    """Returns a function from tokens to a batch of full rows that has each next token."""

    def whole_rows(tokens: Any) -> dict[str, Any]:
        shape = tokens.shape
        return {
            "tokens": np.asarray(tokens, np.int32),
            "targets": np.roll(np.asarray(tokens, np.int32), -1, axis=1),
            "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
            "segment_ids": np.ones(shape, np.int32),
            "loss_weights": np.asarray(jnp.ones(shape).at[:, -1].set(0.0)),
        }

    return whole_rows
