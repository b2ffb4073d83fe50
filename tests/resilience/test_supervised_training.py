"""A supervised run of two processes: whoever is killed, its parameters are those of no kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from engine_run import assert_whole, write_experiment
from quick_flags import quick_environment

from axcore.checkpoint.steps import StepDirectories
from axcore.config import evolve, to_json
from axcore.resilience import read_events
from axcore.resilience.faults import Signal
from axcore.resilience.tracked_process import process_state
from axcore.runs import Run
from axcore.testing.tiny import small_experiment

STEPS = 60


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """The file of a config that saves every five steps."""
    folder = tmp_path_factory.mktemp("experiment")
    cfg = small_experiment(folder / "text")
    every = evolve(cfg.checkpoint, every_steps=5)
    changes = {"max_steps": STEPS, "log_every_steps": 1, "eval_every_steps": STEPS}
    path = folder / "small.json"
    path.write_text(to_json(evolve(cfg, checkpoint=every, **changes)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def launch(experiment):
    """Starts a supervised run of two processes."""

    def start(directory, *options):
        arguments = ("launch", "local", experiment, "-n", "2", "--dir", directory, *options)
        return subprocess.Popen(
            [sys.executable, "-m", "axcore", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=quick_environment(),
        )

    return start


def pids(directory):
    found = [one for one in read_events(directory).events if one["event"] == "processes_started"]
    return [one["pids"] for one in found]


def wait_for_step(directory, step, attempt, limit_s=180):
    """Returns the processes of an attempt once it has come to a step; None of the attempt 0."""
    metrics, end = directory / "metrics.jsonl", time.monotonic() + limit_s
    while time.monotonic() < end:
        text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
        steps = [json.loads(line)["step"] for line in text.splitlines() if line.endswith("}")]
        if len(pids(directory)) == attempt and steps and steps[-1] >= step:
            return pids(directory)[-1] if attempt else None
        time.sleep(0.02)
    raise TimeoutError(f"step {step} of attempt {attempt} did not come")


def wait_for_a_checkpoint(directory, limit_s=180):
    end = time.monotonic() + limit_s
    while not StepDirectories(directory / "checkpoints").committed():
        assert time.monotonic() < end, "no step was saved"
        time.sleep(0.02)


def children(pid):
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parameters(directory):
    return jax.tree.leaves_with_path(Run(directory, step=STEPS).state)


@pytest.fixture(scope="module")
def calm(launch, tmp_path_factory):
    """The parameters of a run that lost no process."""
    directory = tmp_path_factory.mktemp("calm") / "run"
    process = launch(directory)
    shown, _ = process.communicate(timeout=300)
    assert process.returncode == 0, shown
    return parameters(directory)


def assert_equal_bits(wanted, found):
    for (path, one), (_, other) in zip(wanted, found, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), path


@pytest.mark.slow
def test_a_run_that_loses_each_of_its_processes_ends_as_one_that_lost_none(launch, calm, tmp_path):
    struck = launch(tmp_path / "struck")
    for attempt, (rank, step) in enumerate(((1, 12), (0, 31)), start=1):
        os.kill(wait_for_step(tmp_path / "struck", step, attempt)[rank], signal.SIGKILL)
    shown, _ = struck.communicate(timeout=300)
    assert struck.returncode == 0, shown
    lost = [one for one in read_events(tmp_path / "struck").events if one["event"].endswith("lost")]
    assert [one["lost_process"] for one in lost] == [1, 0]
    assert_equal_bits(calm, parameters(tmp_path / "struck"))


@pytest.mark.slow
def test_a_run_that_loses_a_host_goes_on_from_its_neighbours_memory(launch, calm, tmp_path):
    run, memory = tmp_path / "run", tmp_path / "host_{process}"
    snapshots = ("snapshots.every_steps=5", f"snapshots.directory={memory}")
    settings = (*snapshots, "checkpoint.every_steps=1000")
    process = launch(run, *(word for one in settings for word in ("--set", one)))
    lost = wait_for_step(run, 12, attempt=1)[1]
    os.kill(lost, signal.SIGSTOP)  # so that it writes no more while its memory goes
    shutil.rmtree(tmp_path / "host_1")
    os.kill(lost, signal.SIGKILL)
    shown, _ = process.communicate(timeout=300)
    assert process.returncode == 0, shown
    starts = [json.loads(line) for line in (run / "run_history.jsonl").read_text().splitlines()]
    assert [starts[0]["step"], starts[1]["step"] % 5, starts[1]["step"] > 0] == [0, 0, True]
    assert [one.name for one in (run / "checkpoints").glob("step*")] == [f"step_{STEPS:08d}"]
    assert list(tmp_path.glob("host_*/*")) == [], "the memory is given back"
    assert_equal_bits(calm, parameters(run))


@pytest.mark.slow
def test_a_survivor_that_joins_again_in_its_process_ends_with_the_same_bits(launch, calm, tmp_path):
    run = tmp_path / "run"
    snapshots = ("snapshots.every_steps=5", f"snapshots.directory={tmp_path}/host_{{process}}")
    words = (word for one in snapshots for word in ("--set", one))
    process = launch(run, "--policy", "in_process=true", "--policy", "stand_down_s=20", *words)
    os.kill(wait_for_step(run, 12, attempt=1)[0], signal.SIGKILL)
    shown, _ = process.communicate(timeout=300)
    assert process.returncode == 0, shown
    (stood_down,) = [one for one in read_events(run).events if one["event"] == "stood_down"]
    before, after = pids(run)
    assert [before[1] == after[1], before[0] == after[0]] == [stood_down["survivors"] == [1], False]
    assert_equal_bits(calm, parameters(run))


@pytest.mark.slow
def test_a_supervisor_that_is_killed_leaves_no_trainer_and_the_next_one_goes_on(launch, tmp_path):
    first = launch(tmp_path / "run")
    found = wait_for_step(tmp_path / "run", 6, 1)
    wait_for_a_checkpoint(tmp_path / "run")
    first.kill()
    first.communicate(timeout=60)
    end = time.monotonic() + 30
    while any(process_state(pid) not in ("", "Z") for pid in found):
        assert time.monotonic() < end
        time.sleep(0.01)
    second = launch(tmp_path / "run")
    shown, _ = second.communicate(timeout=300)
    assert second.returncode == 0, shown
    assert f"of {STEPS} steps in" in shown
    assert "resuming at step" in shown


@pytest.mark.slow
def test_a_launch_that_goes_back_and_then_crashes_resumes_from_its_newest_checkpoint(tmp_path):
    experiment, run = write_experiment(tmp_path, Signal(at_step=8)), tmp_path / "run"
    command = (sys.executable, "-m", "axcore", "launch", "local", experiment, "--supervise")
    options = ("--dir", run, "--from-step", "0")
    shown = subprocess.run(
        [*map(str, (*command, *options))],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=quick_environment(),
    )
    assert shown.returncode == 0, shown.stderr
    history = (run / "run_history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in history] == [0, 5]
    assert_whole(run)


@pytest.mark.slow
def test_a_process_lost_without_a_supervisor_is_exit_code_9_and_named(launch, tmp_path):
    alone = launch(tmp_path / "run", "--no-supervise")
    wait_for_step(tmp_path / "run", 6, 0)
    os.kill(children(alone.pid)[1], signal.SIGKILL)
    shown, _ = alone.communicate(timeout=300)
    assert alone.returncode == 9, shown
    assert "process 1 was lost: it was ended by SIGKILL" in shown
