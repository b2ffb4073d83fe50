"""A device that computes wrongly, or whose memory changes, is named where nothing has a replica."""

import jax
import numpy as np
import pytest
from guarded_run import guarded_trainer

from axcore.errors import ConfigError, CorruptionError
from axcore.resilience import read_events, replay
from axcore.resilience.faults import FaultPlan, FlipBit
from axcore.resilience.replay import ReplayCheck


def flip(device, element=3, bit=9, parameter="decoder.norm.weight", at_step=1):
    return FlipBit(at_step=at_step, parameter=parameter, device=device, element=element, bit=bit)


class Devices:
    """Devices of which one goes wrong at each run of a program, for as many runs as it says.

    `reads` flips a bit of the tokens that it computes from, so that the fault spreads to all that
    is summed; otherwise a bit of its part of a gradient is flipped.
    """

    def __init__(self):
        self.programs = {}
        self.heal()

    def heal(self):
        self.wrong, self.reads, self.runs = None, False, iter(())

    def fail(self, flip, *, reads=False, runs=None):
        self.wrong, self.reads = flip, reads
        self.runs = iter([True] * 1000 if runs is None else runs)

    def gradients(self, trainer, order):
        """Takes the place of the class, and makes each program once for all tests."""
        if order not in self.programs:
            made = self.programs[order] = replay_gradients(trainer, order)
            made.program = self.faulty(made.program)
        return self.programs[order]

    def faulty(self, program):
        def run(model, batch, step):
            is_wrong = next(self.runs, False)
            if is_wrong and self.reads:
                batch = {**batch, "tokens": self.wrong.flipped(batch["tokens"])}
            gradients, loss = program(model, batch, step)
            if is_wrong and not self.reads:
                leaves, tree = jax.tree.flatten(gradients)
                at = [leaf.size for leaf in leaves].index(max(leaf.size for leaf in leaves))
                leaves[at] = self.wrong.flipped(leaves[at])
                gradients = jax.tree.unflatten(tree, leaves)
            return gradients, loss

        return run


replay_gradients = replay._Gradients


class Run:
    """A state, a batch and a guard of a fully sharded model on eight devices."""

    def __init__(self, folder, devices):
        self.devices = devices
        self.trainer = guarded_trainer(folder, devices=8, mesh={"fsdp": 8})
        self.state = self.trainer.compiler.jitted_init()
        self.batch = next(self.trainer.train_batches())

    def step(self, number):
        self.guard.on_batch(number, self.batch)
        self.guard.on_state(number, self.state)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("text") / "text", Devices())


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    """Returns the run as at its start, with events of its own."""
    made.devices.heal()
    monkeypatch.setattr(replay, "_Gradients", made.devices.gradients)
    made.guard = ReplayCheck.Config(every_steps=2).build()
    made.guard.on_start(made.trainer, tmp_path)
    return made


def test_devices_that_compute_rightly_give_the_same_bits_in_any_order(run, tmp_path):
    for number in range(1, 9):
        run.step(number)
    assert read_events(tmp_path).events == ()


slow = pytest.mark.slow  # each device is searched for with other programs


@pytest.mark.parametrize(
    ("device", "reads"),
    [(7, False), pytest.param(0, False, marks=slow), pytest.param(5, True, marks=slow)],
)
def test_a_device_that_computes_wrongly_is_named(run, tmp_path, device, reads):
    run.step(2)
    run.devices.fail(flip(device, element=1, bit=2), reads=reads)
    with pytest.raises(CorruptionError, match=f"device {device} .process 0. computed wrongly") as e:
        run.step(4)
    assert "step 4 gives other bits with devices exchanged" in e.value.what
    assert "checkpoints after step 2 may be wrong" in e.value.hint
    (event,) = read_events(tmp_path).events
    assert (event["event"], event["step"], event["devices"]) == ("corruption", 4, [device])


def test_a_fault_of_the_first_step_is_found(run):
    run.devices.fail(flip(7), reads=False)
    with pytest.raises(CorruptionError, match=r"device 7 .process 0. computed wrongly"):
        run.step(1)


def test_steps_between_replays_are_not_replayed(run):
    run.step(1)
    run.devices.fail(flip(1))
    run.step(3)


def test_a_device_that_computes_wrongly_once_is_a_warning(run, tmp_path):
    run.step(2)
    run.devices.fail(flip(3), runs=[True])
    with pytest.warns(UserWarning, match=r"step 4: .* once, .* device 3 .process 0. computed"):
        run.step(4)
    assert [one["event"] for one in read_events(tmp_path).events] == ["transient_fault"]


def test_a_device_that_computes_wrongly_now_and_then_is_named_if_only_its_part_shows_it(run):
    run.step(2)
    run.devices.fail(flip(4), runs=[True, False, False, True])
    with pytest.raises(CorruptionError, match=r"each time.*device 4 .process 0. computed wrongly"):
        run.step(4)


def test_all_are_suspects_where_a_fault_now_and_then_spreads(run):
    run.step(2)
    run.devices.fail(flip(4, element=1, bit=2), reads=True, runs=[True, False, False, True])
    with pytest.raises(CorruptionError, match="nothing shows which device computed wrongly"):
        run.step(4)


def test_a_program_that_never_gives_the_same_bits_switches_the_guard_off(run, tmp_path):
    run.devices.fail(flip(4), reads=True, runs=[True, False, False, True])
    with pytest.warns(UserWarning, match="ReplayCheck is off"):
        run.step(1)
    run.devices.fail(flip(4))
    run.step(2)
    assert read_events(tmp_path).events == ()


@pytest.mark.parametrize("parameter", ["decoder.norm.weight", "decoder.embedding.weight"])
def test_a_bit_that_flips_between_a_replay_and_the_next_step_is_found(run, parameter):
    run.step(2)
    changed = flip(2, element=0, parameter=parameter).on_state(2, run.state)
    run.guard.measured(2, changed)
    with pytest.raises(CorruptionError, match="bits changed at rest on device 2") as error:
        run.guard.on_batch(3, run.batch)
    assert parameter in error.value.what


def test_what_is_saved_is_what_was_replayed(run):
    run.step(2)
    run.guard.on_save(2, run.state)
    run.guard.on_save(3, flip(1, element=0).on_state(3, run.state))
    with pytest.raises(CorruptionError, match="step 2; this state was not saved"):
        run.guard.on_save(2, flip(1, element=0).on_state(2, run.state))


def test_a_step_that_is_made_again_after_a_rollback_is_not_compared_with_its_first_time(run):
    run.step(2)
    run.guard.on_batch(2, run.batch)
    run.guard.on_save(2, flip(1, element=0).on_state(2, run.state))


def test_a_process_of_one_device_is_refused(tmp_path):
    trainer = guarded_trainer(tmp_path / "text")
    with pytest.raises(ConfigError, match="process 0 has one"):
        ReplayCheck.Config().build().check(trainer)


MESHES = [{"data": 2, "fsdp": 4}, {"fsdp": 4, "model": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_a_run_under_replays_ends_with_the_same_bits(tmp_path, mesh):
    changes = {"mesh": mesh, "num_micro_batches": 2, "data.batch_size": 16}
    guard = ReplayCheck.Config(every_steps=1)
    plain = guarded_trainer(tmp_path / "text", devices=8, **changes)
    watched = guarded_trainer(tmp_path / "text", guard, devices=8, **changes)
    one = plain.run(tmp_path / "plain", quiet=True).state
    other = watched.run(tmp_path / "watched", quiet=True).state
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
def test_a_run_with_a_flipped_bit_at_rest_ends_before_it_is_saved_and_resumes(tmp_path):
    at = flip(5, element=0, bit=20, at_step=4)
    guards = (ReplayCheck.Config(every_steps=4), FaultPlan.Config(faults=(at,)))
    trainer = guarded_trainer(tmp_path / "text", *guards, devices=8, mesh={"fsdp": 8})
    with pytest.raises(CorruptionError, match=r"at rest on device 5 .* in model\.decoder\.norm"):
        trainer.run(tmp_path / "run", quiet=True)
    assert list((tmp_path / "run" / "checkpoints").glob("step_*")) == []
    assert trainer.run(tmp_path / "run", quiet=True).step == 8


@pytest.mark.slow
def test_a_hundred_flips_are_found_and_their_devices_named(run):
    rng = np.random.default_rng(0)
    for number in range(2, 202, 2):
        device, reads = int(rng.integers(8)), bool(rng.integers(2))
        bits = 8 if reads else 32
        bit = flip(device, element=int(rng.integers(16)), bit=int(rng.integers(bits)))
        run.devices.heal()
        run.step(number - 1)
        run.devices.fail(bit, reads=reads)
        with pytest.raises(CorruptionError, match=f"device {device} .process 0. computed wrongly"):
            run.step(number)
