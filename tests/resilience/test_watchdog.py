"""A run that nobody supervises keeps its stacks when it hangs, and says so."""

import ctypes
import os
import time

import pytest
from engine_run import wait_for

from axcore.resilience.heartbeat import Beat, Heartbeat
from axcore.resilience.policy import Policy
from axcore.resilience.watchdog import ProgressReports, Watchdog
from axcore.trainer import PhaseStarted, RunFinished, RunStarted, StepsDone
from axcore.trainer.callbacks.events import Observers

FACTS = dict.fromkeys(("hardware", "hardware_changes", "mesh", "data", "kernels", "unit"), "")


@pytest.fixture(params=[1.0])
def watchdog(tmp_path, request):
    """A watchdog of a run that has made one step, and whose steps may take some seconds."""
    made = Observers([Watchdog(Policy(step_s=request.param, step_factor=1.0, phase_s={}))])
    numbers = {"step": 0, "max_steps": 9, "num_params": 1, "flops": None, "peak_flops": None}
    made(RunStarted(directory=str(tmp_path), **numbers, **FACTS))
    made(StepsDone(step=1, metrics={"step_time_s": 0.01}))
    yield made
    made(RunFinished(step=1, is_complete=False))


def hang_without_the_gil(seconds):
    time.sleep(seconds)


def hang_with_the_gil(seconds):
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@pytest.mark.parametrize("hang", [hang_without_the_gil, hang_with_the_gil])
def test_a_hang_leaves_stacks_and_one_warning(watchdog, tmp_path, capfd, hang):
    watchdog(PhaseStarted("data_wait"))
    hang(4.0)
    shown = []
    wait_for(lambda: shown.append(capfd.readouterr().err) or "stacks of" in "".join(shown), "it")
    time.sleep(0.6)
    assert hang.__name__ in (tmp_path / "stacks.txt").read_text(encoding="utf-8")
    shown = "".join([*shown, capfd.readouterr().err])
    assert shown.count("warning: no progress for") == 1
    assert "after step 1 (data_wait); stacks of all threads: " in shown


@pytest.mark.parametrize("watchdog", [6.0], indirect=True)
def test_a_run_that_makes_progress_leaves_no_stacks_and_no_warning(watchdog, tmp_path, capfd):
    for _ in range(70):
        watchdog(PhaseStarted("data_wait"))
        watchdog(PhaseStarted("step"))
        time.sleep(0.1)
    watchdog(RunFinished(step=9, is_complete=True))
    assert not (tmp_path / "stacks.txt").exists()
    assert "warning" not in capfd.readouterr().err


def test_each_phase_of_each_step_is_reported():
    pipe, beats = os.pipe()
    emit = Observers([ProgressReports(Heartbeat(beats))])
    emit(PhaseStarted("restore"))
    emit(StepsDone(step=4, metrics={}))
    for label in ("data_wait", "step", "save", "data_wait"):
        emit(PhaseStarted(label))
    read = [Beat.read(line) for line in os.read(pipe, 4096).splitlines()]
    changes = list(dict.fromkeys((beat.step, beat.phase) for beat in read))
    assert changes == [
        (-1, "start"),
        (-1, "restore"),
        (4, "restore"),
        (5, "data_wait"),
        (5, "step"),
        (5, "save"),
        (6, "data_wait"),
    ]
