"""Checkpoints belong to one run, and losing them is no fresh start."""

import json
import shutil
import signal

import pytest

from axcore.checkpoint import MemorySnapshots
from axcore.config import evolve
from axcore.errors import CheckpointError
from axcore.resilience.faults import FaultPlan, InjectedFaultError, Raise
from axcore.trainer import RunStarted, StepsDone
from axcore.trainer.run_directory.identity import RunIdentity, write_identity
from axcore.trainer.run_directory.saved_steps import check_saved_steps, record_saved_step

IDENTITY = RunIdentity("a1", "c1", "d1")


def stop_at(step):
    def observer(event):
        if isinstance(event, StepsDone) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return observer


def test_a_run_keeps_its_identity_and_two_runs_differ(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    made = {"config_lines": ["seed: 0"], "data": "d1"}
    first = write_identity(tmp_path / "a", **made)
    assert write_identity(tmp_path / "a", **made) == first
    other = write_identity(tmp_path / "b", **made)
    assert (other.id != first.id, other.config) == (True, first.config)


def test_a_damaged_identity_is_named(tmp_path):
    (tmp_path / "run.json").write_text('{"id": ')
    with pytest.raises(CheckpointError, match=r"run\.json is damaged"):
        write_identity(tmp_path, config_lines=[], data="d1")


def test_a_checkpoint_of_another_run_is_refused_with_both_sides(tmp_path):
    IDENTITY.check(IDENTITY.as_json(), step=8, directory=tmp_path)
    IDENTITY.check(None, step=8, directory=tmp_path)  # of an axcore that did not say
    with pytest.raises(CheckpointError) as error:
        IDENTITY.check({"id": "b2", "config": "c1", "data": "d1"}, step=8, directory=tmp_path)
    assert "step 8 is another run's (-: that run's, +: this one's)\n- id: b2\n+ id: a1" in str(
        error.value
    )


def test_lost_checkpoints_are_an_error_that_says_where_they_were(tmp_path):
    check_saved_steps(tmp_path, (), tmp_path / "checkpoints")  # a new run has none
    record_saved_step(tmp_path, 8, tmp_path / "elsewhere")
    with pytest.raises(CheckpointError) as error:
        check_saved_steps(tmp_path, (), tmp_path / "checkpoints")
    assert f"step 8 (it was saved in {tmp_path / 'elsewhere'})" in error.value.what
    assert "--from-step 0" in error.value.hint
    with pytest.warns(UserWarning, match="step 8 was saved and is not in .*resuming from step 4"):
        check_saved_steps(tmp_path, (4,), tmp_path / "elsewhere")
    assert check_saved_steps(tmp_path, (4, 8), tmp_path / "elsewhere")


def test_a_snapshot_takes_the_place_of_lost_checkpoints_and_a_warning_names_them(tmp_path):
    record_saved_step(tmp_path, 8, tmp_path)
    with pytest.warns(UserWarning, match="step 8 was saved and is not in .*from the snapshot"):
        assert not check_saved_steps(tmp_path, (), tmp_path, snapshot="the snapshot of step 9")


def test_starts_that_resumed_show_that_there_were_checkpoints(tmp_path):
    (tmp_path / "run_history.jsonl").write_text('{"step": 0}\n{"step": 60}\n')
    with pytest.raises(CheckpointError, match="saved a checkpoint of step 60, and there is none"):
        check_saved_steps(tmp_path, (), tmp_path / "checkpoints")


@pytest.mark.slow
def test_a_run_whose_checkpoints_were_moved_starts_again_only_on_purpose(toy_trainer, tmp_path):
    run = tmp_path / "run"
    toy_trainer.run(run, [stop_at(5)], returns_when_stopped=True)
    before = (run / "metrics.jsonl").read_bytes()
    shutil.move(run / "checkpoints", tmp_path / "moved")
    with pytest.raises(CheckpointError, match="step 5, and there is none"):
        toy_trainer.run(run)
    assert (run / "metrics.jsonl").read_bytes() == before
    started = []
    toy_trainer.run(run, [started.append, stop_at(1)], from_step=0, returns_when_stopped=True)
    assert next(event.step for event in started if isinstance(event, RunStarted)) == 0


@pytest.mark.slow
def test_a_snapshot_does_not_hide_that_checkpoints_are_lost(toy_config, one_device, tmp_path):
    run = tmp_path / "run"
    trainer = one_device(
        evolve(
            toy_config,
            checkpoint=evolve(toy_config.checkpoint, saves_in_background=False),
            snapshots=MemorySnapshots.Config(every_steps=2, directory=str(tmp_path / "memory")),
            guards=(FaultPlan.Config(faults=(Raise(at_step=8),)),),
        )
    )
    with pytest.raises(InjectedFaultError):
        trainer.run(run)
    shutil.move(run / "checkpoints", tmp_path / "moved")
    recorded = []

    def stop_at_once(event):
        if isinstance(event, RunStarted):
            recorded.append(json.loads((run / "saved_steps.json").read_text())["newest"])
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(UserWarning, match="step 4 was saved and is not in .*from the snapshot of"):
        trainer.run(run, [stop_at_once], returns_when_stopped=True)
    assert recorded == [4]


@pytest.mark.slow
def test_two_runs_cannot_share_their_checkpoints(toy_config, one_device, tmp_path):
    shared = evolve(toy_config.checkpoint, directory=str(tmp_path / "shared"))
    one_device(evolve(toy_config, checkpoint=shared)).run(
        tmp_path / "a", [stop_at(5)], returns_when_stopped=True
    )
    other = one_device(evolve(toy_config, checkpoint=shared, seed=7))
    with pytest.raises(CheckpointError, match="another run's") as error:
        other.run(tmp_path / "b")
    own = json.loads((tmp_path / "b/run.json").read_text())
    assert f"+ id: {own['id']}" in error.value.what
    assert "+ config: " in error.value.what
