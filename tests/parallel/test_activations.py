"""Activation hints: no effect on values, best effort on placement, one word when dropped."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from axcore.errors import ShardingError
from axcore.parallel import (
    ActivationSharding,
    is_sharded,
    make_mesh,
    shard,
    sharding_activations,
)


@pytest.fixture
def mesh():
    return make_mesh({"data": 2, "fsdp": 2, "seq": 2}, jax.devices()[:8])


def _double(x):
    return shard(2 * x, "batch", "time", "embed")


def test_without_a_mesh_hints_do_nothing():
    x = jnp.ones((4, 6, 2))
    assert _double(x).sharding.is_equivalent_to(x.sharding, 3)
    assert not is_sharded("time")


def test_hint_splits_as_the_rules_say_and_keeps_the_values(mesh):
    x = np.arange(48, dtype=np.float32).reshape(4, 6, 2)
    with sharding_activations(ActivationSharding(mesh)):
        y = jax.jit(_double)(x)
        assert is_sharded("time")
        assert is_sharded("batch")
        assert not is_sharded("embed")
    assert y.sharding.shard_shape(y.shape) == (1, 3, 2)
    np.testing.assert_array_equal(y, 2 * x)


def test_one_function_is_traced_anew_for_every_mesh(mesh):
    double = jax.jit(_double)
    x = np.ones((4, 6, 2), np.float32)
    whole = double(x)
    with sharding_activations(ActivationSharding(mesh)):
        split = double(x)
    with sharding_activations(ActivationSharding(mesh, {"batch": (), "time": (), "embed": ()})):
        kept = double(x)
    assert len(whole.sharding.device_set) == 1
    assert split.sharding.shard_shape(x.shape) == (1, 3, 2)
    assert kept.sharding.shard_shape(x.shape) == x.shape


def test_dimension_that_does_not_divide_stays_whole_and_says_so_once(mesh):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with sharding_activations(ActivationSharding(mesh)):
            y = jax.jit(lambda x: _double(_double(x)))(np.ones((3, 6, 2), np.float32))
            jax.jit(lambda x: _double(x) + 1)(np.ones((3, 6, 2), np.float32))
    assert [str(warning.message) for warning in caught] == [
        "activation axis 'batch' of size 3 does not divide over 4 devices and is not split"
    ]
    assert y.sharding.shard_shape(y.shape) == (3, 3, 2)
    assert PartitionSpec(None, "seq") == y.sharding.spec


def test_unknown_activation_axis_is_an_error(mesh):
    with (
        sharding_activations(ActivationSharding(mesh)),
        pytest.raises(ShardingError, match="no rule for the logical axis 'tiem'"),
    ):
        jax.jit(lambda x: shard(x, "batch", "tiem"))(np.ones((4, 6), np.float32))
