"""The ledger of a run, as its events fill it, over all starts of the job."""

import os
import signal
import subprocess
import sys
import time

import pytest
from engine_run import write_experiment
from quick_flags import compile_cache, quick_environment

from axcore.resilience import EventLog
from axcore.resilience.faults import Signal
from axcore.resilience.goodput import Goodput
from axcore.resilience.ledger_file import GOODPUT_NAME, read_ledger
from axcore.resilience.process_start import process_start
from axcore.trainer import PhaseStarted, RolledBack, RunFinished, RunStarted, StepsDone


class Clock:
    """A clock that a test sets."""

    def __init__(self, now=1.8e9):
        self.now = now

    def __call__(self):
        return self.now


def started(directory, step=0):
    rest = dict.fromkeys(("hardware", "hardware_changes", "mesh", "data", "kernels", "unit"), "")
    numbers = {"max_steps": 100, "num_params": 1, "flops": None, "peak_flops": None}
    return RunStarted(directory=str(directory), step=step, **rest, **numbers)


def fed(directory, clock, *events, step=0):
    """Returns an observer after a start of 2 s and events, each after some seconds."""
    goodput = Goodput(clock=clock)
    for seconds, event in [(2, started(directory, step)), *events]:
        clock.now += seconds
        goodput(event)
    return goodput


def phase(label):
    return PhaseStarted(label)


def spent(directory):
    seconds = read_ledger(directory).seconds
    return {label: round(value, 3) for label, value in seconds.items() if value}


RUN = [
    (0, phase("compile")),
    (5, phase("data_wait")),
    (1, phase("step")),
    (10, StepsDone(step=10, metrics={})),
]


def test_every_second_of_a_run_goes_to_what_it_was_spent_on(tmp_path):
    fed(tmp_path, Clock(), *RUN, (0, phase("save")), (3, RunFinished(step=10, is_complete=True)))
    assert spent(tmp_path) == {"start": 2, "compile": 5, "data_wait": 1, "step": 10, "save": 3}


def test_time_between_two_starts_is_idle_and_repeated_steps_are_lost(tmp_path):
    clock = Clock()
    fed(tmp_path, clock, *RUN)
    clock.now += 60
    fed(tmp_path, clock, *RUN[:2], (0, RunFinished(step=4, is_complete=False)), step=4)
    assert spent(tmp_path) == {
        "start": 4,
        "compile": 10,
        "data_wait": 1,
        "step": 4,
        "lost_work": 6,
        "idle": 60,
    }
    assert read_ledger(tmp_path).starts == 2


@pytest.mark.parametrize(("event", "label"), [("hang", "hang"), ("process_lost", "lost_work")])
def test_what_a_supervisor_saw_says_when_the_old_processes_ended(tmp_path, event, label):
    clock = Clock(time.time() - 30)  # the log has the real time
    fed(tmp_path, clock, *RUN)
    before = time.time()
    EventLog(tmp_path, "supervisor").write(event)
    after, ledger = time.time(), read_ledger(tmp_path)
    clock.now += 20
    fed(tmp_path, clock, step=10)
    found = read_ledger(tmp_path).seconds
    assert before - ledger.time - 0.1 <= found[label] <= after - ledger.time + 0.1
    assert found[label] + found["idle"] == pytest.approx(20)


def test_a_rollback_loses_the_steps_that_it_undoes(tmp_path):
    back = RolledBack(from_step=10, step=5, reason="a spike", skips_data=True)
    done = (5, StepsDone(step=10, metrics={}))
    fed(tmp_path, Clock(), *RUN, (0, back), done)
    assert (spent(tmp_path)["step"], spent(tmp_path)["lost_work"]) == (10, 5)


def test_the_file_is_written_about_every_second_and_at_reports(tmp_path):
    clock = Clock()
    goodput = fed(tmp_path, clock)
    for _ in range(20):
        clock.now += 0.1
        goodput(phase("step"))
    assert read_ledger(tmp_path).time == pytest.approx(clock.now, abs=1.0)
    clock.now += 0.1
    goodput(StepsDone(step=1, metrics={}))
    assert read_ledger(tmp_path).time == clock.now


def test_a_damaged_file_is_named_and_counting_starts_again(tmp_path):
    (tmp_path / GOODPUT_NAME).write_text('{"time": 3')
    with pytest.warns(UserWarning, match=r"goodput\.json is damaged, so goodput starts at zero"):
        fed(tmp_path, Clock())
    assert spent(tmp_path) == {"start": 2}


def test_a_disk_that_takes_no_file_costs_a_warning_and_no_count(tmp_path):
    clock = Clock()
    goodput = fed(tmp_path, clock)
    (tmp_path / f"{GOODPUT_NAME}.tmp").mkdir()
    clock.now += 5
    with pytest.warns(UserWarning, match=r"goodput\.json was not written"):
        goodput(phase("step"))
    (tmp_path / f"{GOODPUT_NAME}.tmp").rmdir()
    clock.now += 5
    goodput(phase("idle"))
    assert spent(tmp_path) == {"start": 7, "step": 5}


def test_a_process_knows_when_it_was_started():
    program = "from axcore.resilience.process_start import process_start as p; print(p())"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", program]
    before = time.time()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        after = time.time()
        started = float(process.stdout.read())
    assert before - 0.1 <= started <= after + 0.1
    assert process_start() < before


@pytest.mark.slow
def test_labels_add_up_to_the_wall_time_of_a_job_that_is_killed(tmp_path):
    experiment, run = write_experiment(tmp_path, Signal(at_step=8)), tmp_path / "run"
    command = [sys.executable, "-m", "axcore", "train", str(experiment), f"--dir={run}"]
    environment = {**quick_environment(), **compile_cache(tmp_path / "compiled")}

    def start():
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    before = time.time()
    first = start()
    after = time.time()
    first.communicate(timeout=300)
    assert first.returncode == -signal.SIGKILL
    last = start()
    out, err = last.communicate(timeout=300)
    assert last.returncode == 0, err
    ledger = read_ledger(run)
    assert ledger.starts == 2
    assert ledger.time - after - 0.1 <= ledger.wall_s <= ledger.time - before + 0.1
    assert ledger.time <= time.time()
    assert ledger.seconds["lost_work"] > 0
    assert f"{ledger.summary()}\n" in out
