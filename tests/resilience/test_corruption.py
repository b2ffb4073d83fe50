"""A bit that flips in one replica ends the run before it is saved, and its device is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from guarded_run import guarded_trainer
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.errors import CorruptionError
from axcore.resilience import read_events
from axcore.resilience.corruption import (
    CorruptionCheck,
    Replicas,
    disagreements,
    replicas_of,
)
from axcore.resilience.faults import FaultPlan, FlipBit
from axcore.resilience.fingerprints import Fingerprinter, fingerprint_on_host
from axcore.trainer.step import TrainState


class Checked:
    """A check of a model on some devices, without the run around it."""

    def __init__(self, directory, num_devices, spec=None):
        devices = jax.devices()[:num_devices]
        types = (jax.sharding.AxisType.Auto,)
        self.mesh = jax.make_mesh((num_devices,), ("data",), axis_types=types, devices=devices)
        sharding = jax.NamedSharding(self.mesh, spec or jax.P())
        rng = np.random.default_rng(0)
        self.model = {
            "embedding": {"weight": jax.device_put(rng.normal(size=(8, 6)), sharding)},
            "norm": {"scale": jax.device_put(np.ones(8, np.float32), sharding)},
        }
        self.compiler = self  # a trainer, as far as the check asks for one
        self.guard = CorruptionCheck.Config(every_steps=2).build()
        self.guard.on_start(self, directory)

    def abstract_state(self):
        return self.state()

    def state(self, *flips):
        state = TrainState(jnp.int32(0), self.model, None, jnp.int32(0))
        for flip in flips:
            state = flip.on_state(1, state)
        return state


def flip(device, element=3, bit=9, parameter="embedding.weight"):
    return FlipBit(at_step=1, parameter=parameter, device=device, element=element, bit=bit)


def test_replicas_that_agree_pass(tmp_path):
    checked = Checked(tmp_path, 4)
    for step in range(1, 6):
        state = checked.state()
        assert checked.guard.on_state(step, state) is state
    assert read_events(tmp_path).events == ()


@pytest.mark.parametrize("device", range(4))
@pytest.mark.parametrize("bit", [0, 23, 31])
def test_a_flipped_bit_is_found_and_its_device_named(tmp_path, device, bit):
    checked = Checked(tmp_path, 4)
    with pytest.raises(CorruptionError, match=f"device {device} .process 0. contradicts") as error:
        checked.guard.on_state(2, checked.state(flip(device, bit=bit)))
    assert "most of 4 replicas in embedding.weight" in error.value.what
    assert "All of them compute rightly now" in error.value.what
    (event,) = read_events(tmp_path).events
    assert (event["event"], event["step"], event["devices"]) == ("corruption", 2, [device])


def test_steps_between_checks_are_not_looked_at_but_what_is_saved_is(tmp_path):
    checked = Checked(tmp_path, 4)
    corrupt = checked.state(flip(1))
    checked.guard.on_state(3, corrupt)
    with pytest.raises(CorruptionError, match="where:  step 3; this state was not saved"):
        checked.guard.on_save(3, corrupt)


def test_two_replicas_that_differ_are_both_named(tmp_path):
    checked = Checked(tmp_path, 2)
    with pytest.raises(CorruptionError, match=r"hold different bits in norm\.scale") as error:
        checked.guard.on_save(1, checked.state(flip(1, parameter="norm.scale")))
    assert "device 0 (process 0) and device 1 (process 0)" in error.value.what
    assert "nothing shows which of them is right" in error.value.what


def test_parameters_without_replicas_are_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="CorruptionCheck has nothing to compare"):
        checked = Checked(tmp_path, 2, jax.P("data"))
    checked.guard.on_save(1, checked.state(flip(1)))


def test_a_device_that_computes_wrongly_once_is_a_warning(tmp_path, monkeypatch):
    """The device's answer is changed on its way here: no device of a test computes wrongly."""
    checked = Checked(tmp_path, 4)
    checker = checked.guard._checker
    answers = [checker._fingerprints(checked.model)] * 2
    answers[0] = {**answers[0], 2: tuple(one ^ 1 for one in answers[0][2])}
    monkeypatch.setattr(checker, "_fingerprints", lambda model: answers.pop(0))
    with pytest.warns(UserWarning, match=r"device 2 .* looked at again they agree"):
        checked.guard.on_save(1, checked.state())
    assert [one["event"] for one in read_events(tmp_path).events] == ["transient_fault"]


def test_a_device_that_goes_on_computing_wrongly_is_named(tmp_path, monkeypatch):
    checked = Checked(tmp_path, 4)
    checker = checked.guard._checker
    right = checker._fingerprints(checked.model)
    wrong = {**right, 2: tuple(one ^ 1 for one in right[2])}
    monkeypatch.setattr(checker, "_fingerprints", lambda model: wrong)
    with pytest.raises(CorruptionError, match=r"device 2 \(process 0\) still computes wrongly"):
        checked.guard.on_save(1, checked.state())


@pytest.mark.slow
def test_a_run_with_a_flipped_bit_ends_before_it_is_saved_and_resumes(tmp_path):
    """Eight devices: data 4 by fsdp 2."""
    mesh = {"data": 4, "fsdp": 2}
    at = FlipBit(at_step=6, parameter="decoder.norm.weight", device=5, element=2, bit=20)
    guards = (FaultPlan.Config(faults=(at,)), CorruptionCheck.Config(every_steps=100))
    folder, run = tmp_path / "text", tmp_path / "run"
    trainer = guarded_trainer(folder, *guards, devices=8, mesh=mesh)
    with pytest.raises(CorruptionError, match=r"device 5 .* in decoder\.norm\.weight"):
        trainer.run(run, quiet=True)
    saved = sorted(path.name for path in (run / "checkpoints").glob("step_*"))
    assert [int(name.removeprefix("step_")) for name in saved] == [4]
    assert trainer.run(run, quiet=True).step == 8


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
