"""Faults are triggered at their step, as often as the plan says, over all starts of a run."""

import signal
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from guarded_run import guarded_trainer

from axcore.config import from_yaml, to_yaml
from axcore.errors import ConfigError
from axcore.resilience import EventLog, read_events
from axcore.resilience.faults import (
    FaultPlan,
    FlipBit,
    FullDisk,
    Hang,
    HangAfterStep,
    HangInCallback,
    HangInSave,
    InjectedFaultError,
    PoisonBatch,
    Raise,
    Signal,
    SlowDisk,
    SlowStep,
    refuse_files,
    set_disk_fault_roots,
    slow_files,
)
from axcore.trainer import StepsDone
from axcore.trainer.step import TrainState

NO_TRAINER = SimpleNamespace(config=SimpleNamespace(checkpoint=SimpleNamespace(directory="")))


def plan(directory, *faults):
    """Returns a plan that starts in a run directory, as a process of the run starts it."""
    guard = FaultPlan.Config(faults=faults).build()
    guard.on_start(NO_TRAINER, directory)
    return guard


def raised_at(guard, steps):
    """Returns the steps of some at which a plan raises."""
    found = []
    for step in steps:
        try:
            guard.on_batch(step, {})
        except InjectedFaultError:
            found.append(step)
    return found


def test_a_fault_fires_from_its_step_on_as_often_as_it_may(tmp_path):
    assert raised_at(plan(tmp_path, Raise(at_step=3, times=2)), range(1, 8)) == [3, 4]


def test_a_fault_that_fired_does_not_fire_again_after_a_restart(tmp_path):
    fault = Raise(at_step=3, times=2)
    assert raised_at(plan(tmp_path, fault), range(1, 4)) == [3]
    assert raised_at(plan(tmp_path, fault), range(2, 8)) == [3]
    assert raised_at(plan(tmp_path, fault), range(2, 8)) == []
    kinds = [(one["kind"], one["step"], one["time_of"]) for one in read_events(tmp_path).events]
    assert kinds == [("Raise", 3, 1), ("Raise", 3, 2)]


def test_a_fault_triggers_its_process_only(tmp_path):
    assert raised_at(plan(tmp_path, Raise(at_step=1, process=1)), range(1, 4)) == []
    assert raised_at(plan(tmp_path, Raise(at_step=1, process=None)), range(1, 4)) == [1]


def test_what_fired_in_another_process_does_not_count(tmp_path):
    fault = Raise(at_step=1, process=None)
    assert raised_at(plan(tmp_path, fault), [1]) == [1]
    (fired,) = read_events(tmp_path).events
    other = tmp_path / "other"
    other.mkdir()
    EventLog(other, 1).write("fault", key=fired["key"])
    assert raised_at(plan(other, fault), [1]) == [1]


def test_a_fault_that_is_there_twice_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a fault is in the plan twice"):
        plan(tmp_path, Raise(at_step=1), Raise(at_step=1))


def test_a_plan_is_written_and_read_as_configs_are():
    cfg = FaultPlan.Config(
        faults=(
            Raise(at_step=1),
            Signal(at_step=2, signal="SIGSTOP"),
            Hang(at_step=3, holds_gil=True),
            SlowStep(at_step=4),
            PoisonBatch(at_step=5, how="shuffle"),
            FlipBit(at_step=6, parameter="a.b"),
            FullDisk(at_step=7),
            SlowDisk(at_step=8),
        )
    )
    assert from_yaml(to_yaml(cfg)) == cfg
    with pytest.raises(ConfigError, match="did you mean 'at_step'"):
        from_yaml(to_yaml(cfg).replace("at_step", "at_stp", 1))


def test_a_signal_reaches_the_process(tmp_path):
    got = []
    before = signal.signal(signal.SIGTERM, lambda *_: got.append("SIGTERM"))
    try:
        plan(tmp_path, Signal(at_step=1, signal="SIGTERM")).on_batch(1, {})
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == ["SIGTERM"]


@pytest.mark.parametrize(
    ("kind", "method"),
    [(HangAfterStep, "on_state"), (HangInCallback, "on_metrics"), (HangInSave, "on_save")],
)
def test_a_hang_triggers_where_it_is_meant_to_and_once(tmp_path, kind, method):
    trigger = getattr(plan(tmp_path, kind(at_step=2, seconds=0.2)), method)
    trigger(1, {})
    began = time.monotonic()
    trigger(2, {})
    assert time.monotonic() - began >= 0.2
    trigger(3, {})
    assert [one["step"] for one in read_events(tmp_path).events] == [2]


@pytest.mark.parametrize("holds_gil", [False, True])
def test_other_threads_run_in_a_hang_unless_it_holds_the_gil(tmp_path, holds_gil):
    ticks = []
    is_over = threading.Event()

    def tick():
        while not is_over.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    guard = plan(tmp_path, Hang(at_step=1, seconds=2.0, holds_gil=holds_gil))
    began = time.monotonic()
    guard.on_batch(1, {})
    ended = time.monotonic()
    is_over.set()
    thread.join()
    times = [began, *(one for one in ticks if began < one < ended), ended]
    longest_pause = max(after - before for before, after in pairwise(times))
    assert ended - began > 1.9
    assert (longest_pause > 1.9) is holds_gil


def test_a_slow_step_takes_longer(tmp_path):
    began = time.monotonic()
    plan(tmp_path, SlowStep(at_step=1, seconds=0.1, times=2)).on_batch(1, {})
    assert time.monotonic() - began >= 0.1


def test_a_poisoned_batch_is_nan_or_mixed_up(tmp_path):
    batch = {"tokens": np.arange(12).reshape(3, 4), "weights": np.ones((3, 4), np.float32)}
    spoilt = plan(tmp_path, PoisonBatch(at_step=1)).on_batch(1, batch)
    assert np.isnan(spoilt["weights"]).all()
    assert (spoilt["tokens"] == batch["tokens"]).all()
    mixed = plan(tmp_path, PoisonBatch(at_step=1, how="shuffle")).on_batch(1, batch)
    assert (mixed["tokens"] != batch["tokens"]).any()
    assert sorted(mixed["tokens"].flat) == list(range(12))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_flipped_bit_is_one_bit_of_one_device(tmp_path, dtype):
    mesh = jax.make_mesh(
        (4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4]
    )
    whole = jnp.arange(24, dtype=dtype).reshape(4, 6)
    weight = jax.device_put(whole, jax.NamedSharding(mesh, jax.P()))
    model = {"a": {"weight": weight, "bias": jnp.zeros(3)}}
    state = TrainState(jnp.int32(0), model, None, jnp.int32(0))
    flip = FlipBit(at_step=1, parameter="a.weight", device=2, element=7, bit=5)
    flipped = plan(tmp_path, flip).on_state(1, state).model["a"]["weight"]
    assert flipped.sharding == weight.sharding
    for shard in flipped.addressable_shards:
        was = np.asarray(whole).reshape(-1).view(np.uint8)
        bits = np.unpackbits(np.asarray(shard.data).reshape(-1).view(np.uint8) ^ was).sum()
        assert bits == (shard.device.id == 2)


NORM = "decoder.norm.weight"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (FlipBit(at_step=1, parameter="decoder.nrm.weight"), f"did you mean '{NORM}'"),
        (FlipBit(at_step=1, parameter=NORM, device=1), "device is 1; .* has 1 here, from 0"),
        (FlipBit(at_step=1, parameter=NORM, element=10**6), "element is 1000000; "),
        (FlipBit(at_step=1, parameter=NORM, bit=32), "bit is 32; .* has 32 here, from 0"),
        (Raise(at_step=10**6), "is set for step 1000000, of "),
    ],
)
def test_a_fault_that_cannot_strike_is_refused_before_anything_is_written(tmp_path, fault, message):
    trainer = guarded_trainer(tmp_path / "texts", FaultPlan.Config(faults=(fault,)))
    with pytest.raises(ConfigError, match=message):
        trainer.run(tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_fault_of_a_process_that_is_not_there_is_named(tmp_path):
    guard = FaultPlan.Config(faults=(Raise(at_step=1, process=1),)).build()
    with pytest.warns(UserWarning, match="is set for process 1, and there are 1"):
        guard.check(guarded_trainer(tmp_path / "texts"))


def test_a_full_disk_refuses_what_is_new_and_only_below_the_run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "old").write_text("a")
    set_disk_fault_roots(run)
    refuse_files(600.0)
    for attempt in (
        lambda: (run / "new").write_text("b"),
        lambda: (run / "folder").mkdir(),
        lambda: (tmp_path / "aside").rename(run / "aside"),
    ):
        with pytest.raises(OSError, match="No space left on device"):
            attempt()
    assert (run / "old").read_text() == "a"
    (tmp_path / "elsewhere").write_text("c")
    refuse_files(0.1)
    time.sleep(0.2)
    (run / "new").write_text("b")
    assert (run / "new").read_text() == "b"


def test_a_slow_disk_makes_each_new_file_wait(tmp_path):
    set_disk_fault_roots(tmp_path)
    slow_files(600.0, 0.3)
    began = time.monotonic()
    for name in "ab":
        (tmp_path / name).write_text(name)
    assert time.monotonic() - began >= 0.6
    slow_files(0.1, 60.0)
    time.sleep(0.2)
    began = time.monotonic()
    (tmp_path / "c").write_text("c")
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_run_survives_a_batch_of_nan_and_slow_steps(tmp_path):
    faults = (PoisonBatch(at_step=3), SlowStep(at_step=5, seconds=0.3, times=1))
    steps = []
    result = guarded_trainer(tmp_path / "text", FaultPlan.Config(faults=faults)).run(
        tmp_path / "run",
        [lambda event: steps.append(event.metrics) if isinstance(event, StepsDone) else None],
        quiet=True,
    )
    assert (result.step, steps[-1]["skipped_steps"]) == (8, 1)
    assert np.isnan(steps[2]["loss"])
    assert steps[4]["step_time_s"] > 0.3
