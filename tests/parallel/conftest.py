"""A small transformer's loss and gradients, on one device and on a mesh of up to eight."""

import functools
import math

import jax
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.models import transformer
from axcore.module import functional
from axcore.parallel import (
    ACTIVATION_RULES,
    PARAM_RULES,
    ActivationSharding,
    make_mesh,
    param_shardings,
    partition_spec,
    sharding_activations,
)

ROWS, TIME, VOCAB = 8, 8, 18


@pytest.fixture(scope="session")
def small_model():
    """The config of a transformer with four scanned layers and grouped attention."""
    return transformer(
        vocab_size=VOCAB, dim=16, num_layers=4, num_heads=4, num_kv_heads=2, hidden_dim=24
    )


@pytest.fixture(scope="session")
def batch():
    """Rows that hold two documents each, and padding, with a weight for every token."""
    generator = np.random.default_rng(0)
    lengths = (3, TIME - 4, 1)
    places = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    segments = np.repeat(np.array([1, 2, 0], np.int32), lengths)
    return {
        "tokens": generator.integers(0, VOCAB, (ROWS, TIME)).astype(np.int32),
        "targets": generator.integers(0, VOCAB, (ROWS, TIME)).astype(np.int32),
        "positions": np.tile(places, (ROWS, 1)),
        "segment_ids": np.tile(segments, (ROWS, 1)),
        "loss_weights": generator.uniform(size=(ROWS, TIME)).astype(np.float32),
    }


@pytest.fixture(scope="session")
def state_of():
    """Returns a function from a model's config to a first state, as numpy arrays."""
    return lambda cfg: numpy_state(cfg.build().param_specs())


@pytest.fixture(scope="session")
def on_one_device(state_of, batch):
    """Returns a function from a model's config to the loss and gradients of the batch."""

    @functools.cache
    def run(cfg):
        step = jax.jit(_step(cfg.build()))
        return jax.device_get(step(state_of(cfg), batch))

    return run


@pytest.fixture(scope="session")
def on_mesh(state_of, batch):
    """Returns a function from a config and a mesh to a program's text, loss and gradients."""

    @functools.cache
    def run(cfg, shape, rules=(), **choices):
        module = cfg.build()
        devices = jax.devices()[: math.prod(size for _, size in shape)]
        mesh = make_mesh(dict(shape), devices)
        activations = ActivationSharding(mesh, {**ACTIVATION_RULES, **dict(rules)}, **choices)
        shardings = param_shardings(module.param_specs(), PARAM_RULES, mesh)
        spec = partition_spec(("batch", "time"), activations.rules, mesh)
        inputs = (
            jax.device_put(state_of(cfg), shardings),
            jax.device_put(batch, jax.sharding.NamedSharding(mesh, spec)),
        )
        step = jax.jit(_step(module), out_shardings=(None, shardings))
        with jax.set_mesh(mesh), sharding_activations(activations):
            program = step.lower(*inputs).compile()
        return program.as_text(), *jax.device_get(program(*inputs))

    return run


def _step(module):
    def loss(state, batch):
        _, outputs = functional(module, state, batch, rng=1, training=True)
        return outputs.total_loss()

    return jax.value_and_grad(loss)
