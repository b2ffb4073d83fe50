"""A bit that flips in one replica ends the run before it is saved, and its device is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from guarded_run import guarded_trainer

from axcore.errors import CorruptionError
from axcore.resilience import read_events
from axcore.resilience.corruption import CorruptionCheck
from axcore.resilience.faults import FaultPlan, FlipBit
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
