"""A supervised run of two processes: whoever is killed, its parameters are those of no kill."""

import json
import os
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from engine_run import STEPS, assert_whole, steps, wait_for, write_experiment
from marked_processes import is_stopped
from quick_flags import quick_environment

from axcore.resilience import read_events
from axcore.resilience.corruption import CorruptionCheck
from axcore.resilience.faults import FaultPlan, FlipBit, Hang, Signal
from axcore.resilience.replay import ReplayCheck
from axcore.resilience.this_machine import process_state
from axcore.runs import Run


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Starts a supervised run of two processes, in which faults are triggered."""

    folder = tmp_path_factory.mktemp("experiment")

    def start(directory, *options, faults=(), guards=()):
        experiment = write_experiment(folder, *faults, guards=guards)
        arguments = ("launch", "local", experiment, "-n", "2", "--dir", directory, *options)
        return subprocess.Popen(
            [sys.executable, "-m", "axcore", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=quick_environment(),
        )

    return start


def finish(process, exit_code=0):
    """Returns what a launch showed until it ended as it should."""
    shown, _ = process.communicate(timeout=600)
    assert process.returncode == exit_code, shown
    return shown


def pids(directory):
    found = [one for one in read_events(directory).events if one["event"] == "processes_started"]
    return [one["pids"] for one in found]


def starts(directory):
    return [json.loads(line) for line in (directory / "run_history.jsonl").read_text().splitlines()]


def parameters(directory):
    return jax.tree.leaves_with_path(Run(directory, step=STEPS).state)


@pytest.fixture(scope="module")
def calm(launch, tmp_path_factory):
    """The parameters of a run that lost no process."""
    directory = tmp_path_factory.mktemp("calm") / "run"
    finish(launch(directory))
    return parameters(directory)


def assert_equal_bits(wanted, found):
    for (path, one), (_, other) in zip(wanted, found, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), path


@pytest.mark.slow
def test_a_run_that_loses_each_of_its_processes_ends_as_one_that_lost_none(launch, calm, tmp_path):
    faults = (Signal(at_step=12, process=1), Signal(at_step=21, process=0))
    finish(launch(tmp_path / "triggered", faults=faults))
    lost = [
        one for one in read_events(tmp_path / "triggered").events if one["event"].endswith("lost")
    ]
    assert [one["lost_process"] for one in lost] == [1, 0]
    assert [one["is_step_kept"] for one in starts(tmp_path / "triggered")] == [False, True, True]
    assert_equal_bits(calm, parameters(tmp_path / "triggered"))


@pytest.mark.slow
def test_a_run_whose_device_changes_parameters_resumes_by_itself(launch, tmp_path):
    flip = FlipBit(at_step=12, process=1, parameter="decoder.norm.weight", device=1, bit=20)
    guard = CorruptionCheck.Config(every_steps=1)
    four = ("--target", "cpu-4", "--set", "mesh={'data': 4}")
    finish(launch(tmp_path / "run", *four, faults=(flip,), guards=(guard,)))
    (lost,) = (
        one for one in read_events(tmp_path / "run").events if one["event"] == "process_lost"
    )
    assert (lost["lost_process"], lost["cause"], lost["exit_code"]) == (1, "corrupted", 15)
    assert [one["step"] for one in starts(tmp_path / "run")] == [0, 10]
    assert_whole(tmp_path / "run")


@pytest.mark.slow
def test_a_run_without_replicas_whose_device_changes_parameters_resumes_by_itself(launch, tmp_path):
    flip = FlipBit(at_step=12, process=1, parameter="decoder.norm.weight", device=1, bit=20)
    guards = (ReplayCheck.Config(every_steps=6), FaultPlan.Config(faults=(flip,)))
    four = ("--target", "cpu-4", "--set", "mesh={'fsdp': 4}")
    finish(launch(tmp_path / "run", *four, guards=guards))
    events = read_events(tmp_path / "run").events
    (lost,) = (one for one in events if one["event"] == "process_lost")
    assert (lost["lost_process"], lost["cause"], lost["exit_code"]) == (1, "corrupted", 15)
    assert [one["step"] for one in starts(tmp_path / "run")] == [0, 10]
    assert_whole(tmp_path / "run")


@pytest.mark.slow
def test_a_run_that_loses_a_host_goes_on_from_its_neighbours_memory(launch, calm, tmp_path):
    run, memory = tmp_path / "run", tmp_path / "host_{process}"
    snapshots = ("snapshots.every_steps=5", f"snapshots.directory={memory}")
    settings = (*snapshots, "checkpoint.every_steps=1000")
    options = [word for one in settings for word in ("--set", one)]
    stop = Signal(at_step=12, process=1, signal="SIGSTOP")  # it writes no more as its memory goes
    process = launch(run, *options, faults=(stop,))
    wait_for(lambda: pids(run) and is_stopped(pids(run)[0][1]), "the stop of process 1")
    shutil.rmtree(tmp_path / "host_1")
    os.kill(pids(run)[0][1], signal.SIGKILL)
    finish(process)
    first, second = (one["step"] for one in starts(run))
    assert [first, second % 5, second > 0] == [0, 0, True]
    assert [one.name for one in (run / "checkpoints").glob("step*")] == [f"step_{STEPS:08d}"]
    assert list(tmp_path.glob("host_*/*")) == [], "the memory is given back"
    assert_equal_bits(calm, parameters(run))


@pytest.mark.slow
def test_a_survivor_that_joins_again_in_its_process_ends_with_the_same_bits(launch, calm, tmp_path):
    run = tmp_path / "run"
    snapshots = ("snapshots.every_steps=5", f"snapshots.directory={tmp_path}/host_{{process}}")
    words = (word for one in snapshots for word in ("--set", one))
    policy = ("--policy", "in_process=true", "--policy", "stand_down_s=20")
    finish(launch(run, *policy, *words, faults=(Signal(at_step=12, process=0),)))
    (stood_down,) = [one for one in read_events(run).events if one["event"] == "stood_down"]
    before, after = pids(run)
    assert [before[1] == after[1], before[0] == after[0]] == [stood_down["survivors"] == [1], False]
    assert [one["is_step_kept"] for one in starts(run)] == [False, True]
    assert_equal_bits(calm, parameters(run))


@pytest.mark.slow
def test_a_supervisor_that_is_killed_leaves_no_trainer_and_the_next_one_goes_on(launch, tmp_path):
    run, hang = tmp_path / "run", Hang(at_step=12)
    first = launch(run, faults=(hang,))
    wait_for(lambda: 11 in steps(run), "step 11")
    first.kill()
    first.communicate(timeout=300)
    dead = ("", "Z")
    wait_for(lambda: all(process_state(pid) in dead for pid in pids(run)[0]), "the trainers' end")
    shown = finish(launch(run, faults=(hang,)))
    assert f"of {STEPS} steps in" in shown
    assert "resuming at step 10" in shown


@pytest.mark.slow
def test_a_run_whose_process_is_left_out_trains_on_the_same_batches(launch, calm, tmp_path):
    run = tmp_path / "run"
    policy = ("shrink_to=1", "failures_of_one=1", "standby_workers=false")
    options = [word for one in policy for word in ("--policy", one)]
    finish(launch(run, *options, faults=(Signal(at_step=12, process=1),)))
    assert list(map(len, pids(run))) == [2, 1]
    for (path, one), (_, other) in zip(calm, parameters(run), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5, err_msg=str(path))


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
        timeout=600,
        env=quick_environment(),
    )
    assert shown.returncode == 0, shown.stderr
    assert [one["step"] for one in starts(run)] == [0, 5]
    assert_whole(run)


@pytest.mark.slow
def test_a_process_lost_without_a_supervisor_is_exit_code_9_and_named(launch, tmp_path):
    alone = launch(tmp_path / "run", "--no-supervise", faults=(Signal(at_step=8, process=1),))
    assert "process 1 was lost: it was ended by SIGKILL" in finish(alone, exit_code=9)
