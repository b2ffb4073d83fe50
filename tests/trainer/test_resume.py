"""A run that is stopped and taken up again is the run that was never stopped."""

import json
import signal
import subprocess
import sys

import pytest
from quick_flags import quick_environment

from axcore.checkpoint import CheckpointWarning, DamagedCheckpointError
from axcore.config import evolve, update_config
from axcore.errors import CheckpointError, ConfigError, DataError
from axcore.trainer import (
    Evaluated,
    PhaseStarted,
    RunFinished,
    RunStarted,
    StepsDone,
)


def stop_at(step, *numbers):
    """Returns an observer that sends signals to this process once a step is done."""

    def observer(event):
        if isinstance(event, StepsDone) and event.step == step:
            for number in numbers:
                signal.raise_signal(number)

    return observer


def lines_of(directory):
    text = (directory / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def losses_of(directory):
    return [(line["step"], line["split"], line["loss"]) for line in lines_of(directory)]


def contents(directory):
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.slow
def test_a_signal_saves_and_going_on_gives_the_same_bits(
    toy_trainer, whole_run, same_bits, tmp_path, number, step
):
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    stopped = toy_trainer.run(tmp_path / "run", [stop_at(step, number)], returns_when_stopped=True)
    assert (stopped.step, stopped.is_complete) == (step, False)
    assert handlers == [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    assert (tmp_path / f"run/checkpoints/step_{step:08d}").is_dir()
    resumed = toy_trainer.run(tmp_path / "run")
    directory, whole = whole_run
    assert (resumed.step, resumed.is_complete) == (12, True)
    assert same_bits(resumed.state, whole.state)
    assert resumed.validation == whole.validation
    assert losses_of(tmp_path / "run") == losses_of(directory)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
@pytest.mark.parametrize("step", [4, 12])
@pytest.mark.slow
def test_a_signal_is_raised_once_the_run_is_saved(toy_trainer, tmp_path, number, error, step):
    with pytest.raises(error) as raised:
        toy_trainer.run(tmp_path, [stop_at(step, number)])
    assert getattr(raised.value, "code", 143) == 143
    assert (tmp_path / f"checkpoints/step_{step:08d}").is_dir()


@pytest.mark.slow
def test_a_notice_of_preemption_is_raised_too(toy_config, one_device, tmp_path):
    notice = tmp_path / "notice"

    def touch(event):
        if isinstance(event, StepsDone) and event.step == 3:
            notice.touch()

    with pytest.raises(SystemExit) as raised:
        one_device(evolve(toy_config, preemption_notice=str(notice))).run(tmp_path / "run", [touch])
    assert raised.value.code == 143
    assert (tmp_path / "run/checkpoints/step_00000003").is_dir()


SWEEP = """
import os, signal
from pathlib import Path
import axcore as ax
from axcore.testing import small_experiment
from axcore.trainer import StepsDone
def end(event):
    if isinstance(event, StepsDone):
        os.kill(os.getpid(), signal.{number})
cfg = ax.update_config(small_experiment(Path("texts")), {{"mesh": {{"fsdp": 1}}}})
for name in ("first", "second"):
    try:
        cfg.build().run(name, [end], quiet=True)
    except Exception:
        print("a sweep continues where a run fails")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [("SIGINT", -signal.SIGINT), ("SIGTERM", 143)])
def test_a_signal_ends_a_sweep(tmp_path, number, code):
    script = SWEEP.format(number=number)
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=quick_environment(), check=False
    )
    assert ended.returncode == code
    assert (tmp_path / "first/checkpoints/step_00000001").is_dir()
    assert not (tmp_path / "second").exists()


@pytest.mark.slow
def test_fewer_steps_than_are_done_are_refused_and_change_nothing(
    toy_config, one_device, whole_run
):
    directory, _ = whole_run
    before = contents(directory)
    shorter = one_device(evolve(toy_config, max_steps=8))
    with pytest.raises(ConfigError, match="max_steps is 8, and the run resumes from step 12"):
        shorter.run(directory)
    assert contents(directory) == before


@pytest.mark.slow
def test_the_first_state_is_part_of_the_start_and_no_restore(toy_trainer, whole_run, tmp_path):
    def labels_of(directory, **options):
        found = []

        def observer(event):
            if isinstance(event, PhaseStarted):
                found.append(event.label)

        observer.sees_phases = True
        toy_trainer.run(directory, [observer], **options)
        return found

    stopping = tmp_path / "run"
    toy_trainer.run(stopping, [stop_at(4, signal.SIGINT)], returns_when_stopped=True)
    assert "restore" in labels_of(stopping)
    assert "restore" not in labels_of(tmp_path / "new")


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(toy_trainer, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        toy_trainer.run(tmp_path / "run", [stop_at(6, signal.SIGINT, signal.SIGINT)])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    stopping = {"observers": [stop_at(5, signal.SIGINT)], "returns_when_stopped": True}
    assert toy_trainer.run(tmp_path / "run", **stopping).step == 5


def train_losses(directory):
    """The loss and its parts, of each step that a line of training is of."""
    return {
        line["step"]: {name: line[name] for name in line if name.startswith(("loss", "total"))}
        for line in lines_of(directory)
        if line["split"] == "train"
    }


def test_a_line_after_a_resume_has_the_losses_of_the_line_without_it(
    toy_config, one_device, tmp_path
):
    trainer = one_device(
        update_config(toy_config, {"logging.every_steps": 5})
    )  # saved after 4, 8 and 12 steps
    trainer.run(tmp_path)
    whole = train_losses(tmp_path)
    assert list(whole) == [5, 10, 12]
    for step in (8, 4):
        trainer.run(tmp_path, from_step=step)
        assert train_losses(tmp_path) == whole
    stopped = [stop_at_evaluation(8)]
    trainer.run(tmp_path, stopped, from_step=4, returns_when_stopped=True)
    assert list(train_losses(tmp_path)) == [5, 8]
    trainer.run(tmp_path)
    resumed = train_losses(tmp_path)
    assert {step: resumed[step] for step in whole} == whole


def stop_at_evaluation(step):
    def observer(event):
        if isinstance(event, Evaluated) and event.step == step:
            signal.raise_signal(signal.SIGTERM)

    return observer


@pytest.mark.slow
def test_a_stop_logs_the_steps_that_no_line_covers_yet(rare_trainer, tmp_path):
    events = []

    def stop_at_evaluation(event):
        events.append(event)
        if isinstance(event, Evaluated):
            signal.raise_signal(signal.SIGINT)

    rare_trainer.run(tmp_path, [stop_at_evaluation], returns_when_stopped=True)
    assert [(line["step"], line["split"]) for line in lines_of(tmp_path)] == [
        (2, "validation"),
        (2, "train"),
    ]
    assert events[-1] == RunFinished(step=2, is_complete=False)


@pytest.mark.slow
def test_a_finished_run_runs_no_step_again(toy_trainer, whole_run, same_bits):
    directory, whole = whole_run
    before = losses_of(directory)
    again = toy_trainer.run(directory)
    assert (again.step, again.is_complete, again.validation) == (12, True, whole.validation)
    assert same_bits(again.state, whole.state)
    assert losses_of(directory) == before


@pytest.mark.slow
def test_the_learning_rate_of_a_step_is_the_same_after_resuming(toy_trainer, whole_run, tmp_path):
    toy_trainer.run(tmp_path / "run", [stop_at(6, signal.SIGTERM)], returns_when_stopped=True)
    toy_trainer.run(tmp_path / "run")
    rates = {line["step"]: line.get("learning_rate") for line in lines_of(tmp_path / "run")}
    assert rates == {line["step"]: line.get("learning_rate") for line in lines_of(whole_run[0])}


def damage(directory, step):
    """Cuts the largest file of a checkpoint short."""
    folder = directory / f"checkpoints/step_{step:08d}"
    largest = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-20])


@pytest.mark.slow
def test_a_checkpoint_cut_short_falls_back_to_the_one_before(
    toy_trainer, whole_run, same_bits, tmp_path
):
    toy_trainer.run(tmp_path / "run", [stop_at(10, signal.SIGINT)], returns_when_stopped=True)
    damage(tmp_path / "run", 10)
    started = []
    with (
        pytest.warns(CheckpointWarning, match="going back to step 8"),
        pytest.warns(CheckpointWarning, match="renamed to step_N.quarantined"),
    ):
        resumed = toy_trainer.run(tmp_path / "run", [started.append])
    assert started[0].step == 8
    assert same_bits(resumed.state, whole_run[1].state)
    assert losses_of(tmp_path / "run") == losses_of(whole_run[0])
    assert (tmp_path / "run/checkpoints/step_00000010.quarantined").is_dir()


@pytest.mark.slow
def test_a_run_whose_every_checkpoint_is_cut_short_stops_and_loses_nothing(toy_trainer, tmp_path):
    toy_trainer.run(tmp_path / "run", [stop_at(3, signal.SIGINT)], returns_when_stopped=True)
    damage(tmp_path / "run", 3)
    before = contents(tmp_path / "run")
    with pytest.raises(DamagedCheckpointError, match="no checkpoint is intact\nstep 3 is damaged"):
        toy_trainer.run(tmp_path / "run")
    assert contents(tmp_path / "run") == before


@pytest.mark.slow
def test_a_directory_of_another_config_is_refused_with_a_diff_and_left_alone(
    toy_config, one_device, whole_run
):
    directory, _ = whole_run
    before = contents(directory)
    other = one_device(evolve(toy_config, seed=7, max_steps=99))
    with pytest.raises(CheckpointError, match=r"another config(?s:.*)\+ seed: 7") as error:
        other.run(directory)
    assert "max_steps" not in error.value.what
    assert contents(directory) == before


@pytest.mark.slow
def test_a_modules_own_field_may_change_where_it_says_so_and_its_others_may_not(
    toy, toy_config, one_device, tmp_path
):
    one_device(toy_config).run(
        tmp_path / "run", [stop_at(2, signal.SIGINT)], returns_when_stopped=True
    )
    other = evolve(toy_config, model=toy.Config(note="a third party's own"))
    stopping = {"observers": [stop_at(3, signal.SIGINT)], "returns_when_stopped": True}
    assert one_device(other).run(tmp_path / "run", **stopping).step == 3
    refused = evolve(toy_config, model=toy.Config(dropout=0.2))
    with pytest.raises(CheckpointError, match=r"\+ model\.dropout: 0\.2") as error:
        one_device(refused).run(tmp_path / "run")
    assert "only these may change: max_steps, num_micro_batches, mesh," in error.value.hint
    assert "**.remat, **.note" in error.value.hint


@pytest.mark.slow
def test_data_that_changed_is_refused(toy_config, one_device, text_folder, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for path in text_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    source = evolve(toy_config.data.source, folder=str(folder))
    cfg = evolve(toy_config, data=evolve(toy_config.data, source=source))
    one_device(cfg).run(tmp_path / "run", [stop_at(2, signal.SIGINT)], returns_when_stopped=True)
    (folder / "39.txt").write_text("something else", encoding="utf-8")
    with pytest.raises(DataError, match="position belongs to other training data: tokens was"):
        one_device(cfg).run(tmp_path / "run")


@pytest.mark.slow
def test_all_starts_of_one_launch_go_back_once_and_another_launch_goes_back_again(
    toy_trainer, tmp_path
):
    def start(step, **options):
        events = []
        toy_trainer.run(
            tmp_path / "run",
            [events.append, stop_at(step, signal.SIGINT)],
            **options,
            returns_when_stopped=True,
        )
        return next(event.step for event in events if isinstance(event, RunStarted))

    start(5)
    starts = [(6, "a"), (7, "a"), (6, "b")]
    found = [start(step, from_step=4, launch=launch) for step, launch in starts]
    assert found == [4, 6, 4]
