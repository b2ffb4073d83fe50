"""One device and eight give the same loss and gradients, whatever the mesh."""

import functools

import jax
import numpy as np
import pytest

from axcore.models import transformer
from axcore.module import ParamSpec, functional
from axcore.parallel import (
    ACTIVATION_RULES,
    PARAM_RULES,
    ActivationSharding,
    make_mesh,
    param_shardings,
    partition_spec,
    sharding_activations,
)

FAST_COMPILE = {"xla_backend_optimization_level": 0}
ROWS, TIME, VOCAB = 8, 8, 18


@pytest.fixture(scope="module")
def module():
    return transformer(
        vocab_size=VOCAB, dim=16, num_layers=2, num_heads=4, num_kv_heads=2, hidden_dim=24
    ).build()


@pytest.fixture(scope="module")
def state(module):
    init = jax.jit(module.init, compiler_options=FAST_COMPILE)
    return jax.tree.map(np.asarray, init(jax.random.key(0)))


@pytest.fixture(scope="module")
def batch():
    generator = np.random.default_rng(0)
    half = np.arange(TIME // 2, dtype=np.int32)
    return {
        "tokens": generator.integers(0, VOCAB, (ROWS, TIME)).astype(np.int32),
        "targets": generator.integers(0, VOCAB, (ROWS, TIME)).astype(np.int32),
        "positions": np.tile(np.concatenate([half, half]), (ROWS, 1)),
        "segment_ids": np.tile(np.repeat(np.array([1, 2], np.int32), TIME // 2), (ROWS, 1)),
        "loss_weights": generator.uniform(size=(ROWS, TIME)).astype(np.float32),
    }


def _loss(module, state, batch):
    _, outputs = functional(module, state, batch, training=True)
    return outputs.total_loss()


@pytest.fixture(scope="module")
def on_one_device(module, state, batch):
    run = jax.value_and_grad(lambda state, batch: _loss(module, state, batch))
    return jax.device_get(jax.jit(run, compiler_options=FAST_COMPILE)(state, batch))


@pytest.fixture(scope="module")
def on_mesh(module, state, batch):
    """Returns a function from a mesh shape to the compiled program's text, loss and gradients."""

    @functools.cache
    def run(shape):
        mesh = make_mesh(dict(shape), jax.devices()[:8])
        shardings = param_shardings(module.param_specs(), PARAM_RULES, mesh)
        spec = partition_spec(("batch", "time"), ACTIVATION_RULES, mesh)
        inputs = (
            jax.device_put(state, shardings),
            jax.device_put(batch, jax.sharding.NamedSharding(mesh, spec)),
        )
        gradients = jax.jit(
            jax.value_and_grad(lambda state, batch: _loss(module, state, batch)),
            out_shardings=(None, shardings),
            compiler_options=FAST_COMPILE,
        )
        with sharding_activations(ActivationSharding(mesh)):
            program = gradients.lower(*inputs).compile()
        return program.as_text(), *jax.device_get(program(*inputs))

    return run


BATCH_MESHES = (
    (("fsdp", 8),),
    (("data", 2), ("fsdp", 4)),
    (("data", 2), ("fsdp", 2), ("model", 2)),
)
SEQUENCE_MESH = (("fsdp", 2), ("seq", 2), ("model", 2))


def _name(shape):
    return " x ".join(f"{name} {size}" for name, size in shape)


@pytest.mark.parametrize("shape", [*BATCH_MESHES, SEQUENCE_MESH], ids=_name)
def test_mesh_changes_no_number(on_mesh, on_one_device, shape):
    _, loss, gradient = on_mesh(shape)
    expected_loss, expected_gradient = on_one_device
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6),
        gradient,
        expected_gradient,
    )


@pytest.mark.parametrize("shape", BATCH_MESHES, ids=_name)
def test_nothing_changes_from_one_layout_to_another(on_mesh, shape):
    """Parameters are gathered and sums reduced; no activation is dealt out anew."""
    program, *_ = on_mesh(shape)
    assert "all-gather" in program
    assert "all-reduce" in program
    assert "all-to-all" not in program
    assert "collective-permute" not in program


def test_fully_sharded_state_takes_an_eighth_on_every_device(module, state):
    mesh = make_mesh({"fsdp": 8}, jax.devices()[:8])
    specs = module.param_specs()
    placed = jax.device_put(state, param_shardings(specs, PARAM_RULES, mesh))
    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    pairs = zip(jax.tree.leaves(placed), jax.tree.leaves(specs, is_leaf=is_spec), strict=True)
    for leaf, spec in pairs:
        held = {shard.data.nbytes for shard in leaf.addressable_shards}
        assert held == {leaf.nbytes // 8 if "embed" in spec.axes else leaf.nbytes}, spec.name
