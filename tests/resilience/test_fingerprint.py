"""Fingerprints see every bit, whatever the sharding, and say the same on host and device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.resilience.fingerprint import Fingerprinter, fingerprint_on_host
from axcore.resilience.replicas import Replicas, disagreements, replicas_of

SPECS = [
    jax.P(),
    jax.P("fsdp"),
    jax.P(None, "fsdp"),
    jax.P(("data", "fsdp")),
    jax.P("data", "fsdp"),
    jax.P(("fsdp", "data"), None),
]
DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "int8", "bool", "int32")


@pytest.fixture(scope="module")
def mesh():
    types = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=types, devices=jax.devices()[:8])


@pytest.fixture(scope="module")
def values():
    wide = jax.random.normal(jax.random.key(0), (16, 24)) * 50
    return [np.asarray(wide.astype(dtype)) for dtype in DTYPES]


def placed(values, mesh, spec):
    sharding = jax.NamedSharding(mesh, spec)
    return [jax.device_put(value, sharding) for value in values]


def whole(tree, fingerprints):
    """Returns the sum over each leaf's distinct shards, after making sure that replicas agree."""
    totals = []
    for at, leaf in enumerate(tree):
        by_part = {}
        for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
            by_part.setdefault(str(index), set()).add(fingerprints[device.id][at])
        assert all(len(sums) == 1 for sums in by_part.values())
        totals.append(sum(sums.pop() for sums in by_part.values()) % 2**32)
    return totals


def test_a_fingerprint_does_not_depend_on_the_sharding(mesh, values):
    found = []
    for spec in SPECS:
        tree = placed(values, mesh, spec)
        found.append(whole(tree, Fingerprinter(tree, mesh)(tree)))
    assert found == [found[0]] * len(SPECS)
    assert len(set(found[0])) == len(DTYPES)


def test_the_host_computes_the_same(mesh, values):
    for spec in SPECS:
        tree = placed(values, mesh, spec)
        sums = Fingerprinter(tree, mesh)(tree)
        for at, leaf in enumerate(tree):
            for shard in leaf.addressable_shards:
                own = fingerprint_on_host(np.asarray(shard.data), leaf.shape, shard.index)
                assert own == sums[shard.device.id][at]


@given(st.integers(0, 16 * 24 - 1), st.integers(0, 31))
@settings(max_examples=200)
def test_a_flipped_bit_changes_it(at, bit):
    array = np.linspace(-3, 3, 16 * 24, dtype=np.float32).reshape(16, 24)
    flipped = array.copy()
    flipped.reshape(-1).view(np.uint32)[at] ^= np.uint32(1 << bit)
    index = (slice(None), slice(None))
    assert fingerprint_on_host(array, (16, 24), index) != fingerprint_on_host(
        flipped, (16, 24), index
    )


def test_two_sign_bits_and_exchanged_elements_change_it():
    array = np.arange(1, 9, dtype=np.float32)
    signs, exchanged = array.copy(), array.copy()
    signs[[2, 5]] *= -1
    exchanged[[2, 5]] = exchanged[[5, 2]]
    found = {fingerprint_on_host(one, (8,), (slice(None),)) for one in (array, signs, exchanged)}
    assert len(found) == 3


def test_replicas_are_the_devices_that_hold_the_same_part(mesh):
    leaf = jnp.zeros((16, 24))
    tree = [jax.device_put(leaf, jax.NamedSharding(mesh, spec)) for spec in SPECS[:4]]
    sizes = [(one.leaf, len(one.devices)) for one in replicas_of(tree)]
    assert sizes == [(0, 8)] + [(1, 2)] * 4 + [(2, 2)] * 4


groups = st.lists(st.integers(0, 3), min_size=2, max_size=8)


@given(groups)
def test_the_minority_is_suspected_and_nobody_where_there_is_none(sums):
    group = Replicas(0, tuple(range(len(sums))))
    found = disagreements([group], {device: (one,) for device, one in enumerate(sums)})
    most = max(sums, key=sums.count)
    if len(set(sums)) == 1:
        assert found == []
    elif sums.count(most) * 2 > len(sums):
        assert found[0].is_decided
        assert [sums[device] for device in found[0].suspects].count(most) == 0
        assert len(found[0].suspects) == len(sums) - sums.count(most)
    else:
        assert not found[0].is_decided
        assert found[0].suspects == group.devices
