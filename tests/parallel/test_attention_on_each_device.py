"""Forward and backward attention kernels that each device runs on its own rows and heads."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from axcore.ops.attention_blockwise import blockwise_backward, blockwise_forward
from axcore.ops.attention_samples import ATTENTION_SAMPLES
from axcore.ops.attention_vjp import attention_from_halves
from axcore.ops.tolerance import relative_error
from axcore.parallel import (
    ActivationSharding,
    backward_on_each_device,
    forward_on_each_device,
    make_mesh,
    sharding_activations,
)

SAMPLES = {sample.name: sample for sample in ATTENTION_SAMPLES}
FLOATS = ("q_BTNH", "k_BSKH", "v_BSKV", "bias_BNTS", "sinks_N")


@pytest.fixture(scope="module")
def mesh():
    return make_mesh({"data": 2, "model": 2}, jax.devices()[:4])


def output_and_gradients(forward, backward, name):
    inputs, spec = SAMPLES[name].make()
    floats = {field: getattr(inputs, field) for field in FLOATS}

    def loss(floats):
        o, lse = attention_from_halves(
            inputs._replace(**floats), spec, forward=forward, backward=backward
        )
        rows = jnp.where(jnp.isfinite(lse), lse, 0.0)
        weights = jnp.cos(jnp.arange(o.size, dtype=jnp.float32)).reshape(o.shape)
        return jnp.sum(o * weights) + jnp.sum(rows * rows), (o, rows)

    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(floats)
    return jax.tree.leaves((outputs, gradients))


@pytest.mark.parametrize("name", ["causal", "segments", "everything"])
def test_parts_give_the_output_and_gradients_of_the_whole(mesh, name):
    whole = output_and_gradients(blockwise_forward, blockwise_backward, name)
    shapes = []

    def seen(inputs, spec):
        shapes.append(inputs.q_BTNH.shape[::2])
        return blockwise_forward(inputs, spec)

    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        parts = output_and_gradients(
            partial(forward_on_each_device, seen),
            partial(backward_on_each_device, blockwise_backward),
            name,
        )
    sample = SAMPLES[name]
    assert set(shapes) == {(sample.batch // 2, sample.heads // 2)}
    for part, one in zip(parts, whole, strict=True):
        assert relative_error(part, one) <= 1e-5
