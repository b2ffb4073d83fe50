"""What is reported of a sharding: parts, bytes, what stays whole, and axes that do nothing."""

import jax
import pytest

from axcore.models import transformer
from axcore.parallel import (
    ACTIVATION_RULES,
    PARAM_RULES,
    bytes_per_device,
    describe_sharding,
    make_mesh,
    param_shardings,
    partition_spec,
    unused_mesh_axes,
)


@pytest.fixture(scope="module")
def specs():
    cfg = transformer(vocab_size=18, dim=16, num_layers=2, num_heads=4, hidden_dim=24)
    return cfg.build().param_specs()


def _shardings(specs, **mesh):
    mesh = make_mesh(mesh, jax.devices()[:8])
    return mesh, param_shardings(specs, PARAM_RULES, mesh)


def _batch(rules, mesh):
    return jax.NamedSharding(mesh, partition_spec(("batch", "time"), rules, mesh))


def test_arrays_are_told_with_what_a_device_holds_of_them(specs):
    _, shardings = _shardings(specs, fsdp=4, model=2)
    arrays = {array.name: array for array in describe_sharding(specs, shardings)}
    gate = arrays["decoder.stack.layer.feed_forward.gate.weight"]
    assert (gate.shape, gate.split) == ((2, 16, 24), ("-", "fsdp", "model"))
    assert gate.bytes_per_device == 2 * 16 * 24 * 4 // 8
    assert not gate.is_whole
    norm = arrays["decoder.norm.weight"]
    assert norm.is_whole
    assert norm.bytes_per_device == 16 * 4


def test_sum_is_what_devices_hold(specs):
    _, shardings = _shardings(specs, data=2, fsdp=4)
    module = transformer(vocab_size=18, dim=16, num_layers=2, num_heads=4, hidden_dim=24).build()
    state = jax.device_put(module.init(0), shardings)
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
    assert bytes_per_device(state, shardings) == held
    assert sum(array.bytes_per_device for array in describe_sharding(specs, shardings)) == held


@pytest.mark.parametrize(
    ("mesh", "unused"),
    [
        ({"pipeline": 2, "data": 4}, ["pipeline"]),
        ({"expert": 8}, []),
        ({"seq": 2, "model": 2, "fsdp": 2}, []),
    ],
)
def test_axes_that_split_nothing_are_named(specs, mesh, unused):
    mesh, shardings = _shardings(specs, **mesh)
    assert unused_mesh_axes((shardings, _batch(ACTIVATION_RULES, mesh)), mesh) == unused


def test_without_its_rule_an_axis_splits_nothing(specs):
    mesh, shardings = _shardings(specs, seq=8)
    batch = _batch({**ACTIVATION_RULES, "time": ()}, mesh)
    assert unused_mesh_axes((shardings, batch), mesh) == ["seq"]
