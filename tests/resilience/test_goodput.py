"""The ledger of a run, as its events fill it, over all starts of the job."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from engine_run import write_experiment
from hypothesis import given
from hypothesis import strategies as st
from quick_flags import compile_cache, quick_environment

from axcore.resilience import EventLog
from axcore.resilience.faults import Signal
from axcore.resilience.goodput import Goodput
from axcore.resilience.ledger import GOODPUT_NAME, LABELS, Ledger, process_start, read_ledger
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
    program = "from axcore.resilience.ledger import process_start as p; print(p())"
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


spans = st.floats(0, 1000)
phases = st.lists(st.tuples(spans, st.sampled_from(LABELS)), max_size=30)
START = 1.7e9


def ledger_of(phases):
    ledger, time = Ledger(START), START
    for span, label in phases:
        time += span
        ledger.mark(time, label)
    return ledger


@given(phases)
def test_labels_add_up_to_the_time_between_the_first_mark_and_the_last(phases):
    ledger = ledger_of(phases)
    assert ledger.wall_s == pytest.approx(ledger.time - START, abs=1e-5)
    assert all(seconds >= 0 for seconds in ledger.seconds.values())


@given(phases, st.integers(0, 30), st.floats(0, 1))
def test_a_mark_that_changes_no_label_changes_no_sum(phases, at, share):
    label = phases[at - 1][1] if 0 < at <= len(phases) else "start"
    split = list(phases)
    if at < len(phases):
        span, after = phases[at]
        split[at : at + 1] = [(span * share, label), (span * (1 - share), after)]
    assert ledger_of(split).seconds == pytest.approx(ledger_of(phases).seconds, abs=1e-5)


@given(phases, phases)
def test_a_ledger_that_is_written_and_read_goes_on_as_if_it_were_not(first, second):
    whole = ledger_of(first)
    read = Ledger.from_dict(json.loads(json.dumps(whole.as_dict())))
    assert read == whole
    for ledger in (whole, read):
        for span, label in second:
            ledger.mark(ledger.time + span, label)
    assert read == whole


@given(phases, spans, spans, st.sampled_from(["hang", "lost_work"]))
def test_the_time_between_two_starts_is_accounted_for(phases, until_death, down, label):
    ledger = ledger_of(phases)
    before = dict(ledger.seconds)
    died = ledger.time + until_death
    ledger.restart(died + down, (died, label))
    assert ledger.seconds[label] == pytest.approx(before[label] + until_death, abs=1e-5)
    assert ledger.seconds["idle"] == pytest.approx(before["idle"] + down, abs=1e-5)
    assert ledger.wall_s == pytest.approx(ledger.time - START, abs=1e-5)
    assert (ledger.label, ledger.starts) == ("start", 2)


@given(phases, spans, phases)
def test_the_ledger_of_new_processes_adds_to_that_of_the_old(first, down, second):
    whole, newer = ledger_of(first), Ledger(0)
    newer.time += whole.time + down
    appended = ledger_of(first)
    whole.restart(newer.time)
    for span, label in second:
        whole.mark(whole.time + span, label)
        newer.mark(newer.time + span, label)
    appended.append(newer)
    assert appended.seconds == pytest.approx(whole.seconds, abs=1e-4)
    assert (appended.label, appended.starts) == (whole.label, 2)


def test_a_death_that_nobody_saw_is_idle():
    ledger = ledger_of([(5, "step")])
    ledger.restart(START + 12)
    assert (ledger.seconds["start"], ledger.seconds["step"], ledger.seconds["idle"]) == (5, 0, 7)


steps = st.lists(st.floats(0.01, 50), min_size=1, max_size=60)


@given(steps, st.integers(1, 7), st.data())
def test_what_repeated_steps_took_at_first_is_lost_and_nothing_else(durations, every, data):
    """A job that dies after each of some steps, and resumes at its last checkpoint."""
    deaths = data.draw(st.lists(st.integers(1, len(durations)), max_size=6))
    ledger, time, spent, lost = Ledger(START, label="step"), START, [], 0.0
    for end in [*deaths, len(durations)]:
        restored = len(spent) // every * every
        lost += sum(spent[restored:])
        del spent[restored:]
        ledger.go_back(restored)
        while len(spent) < max(end, restored):
            spent.append(durations[len(spent)])
            time += spent[-1]
            ledger.reach(time, len(spent))
        ledger.restart(time + 3)
        time += 3
        ledger.mark(time, "step")
    assert ledger.seconds["lost_work"] == pytest.approx(lost, abs=1e-4)
    assert ledger.seconds["step"] == pytest.approx(sum(spent), abs=1e-4)
    assert ledger.wall_s == pytest.approx(time - START, abs=1e-4)


@given(st.integers(1, 5000), st.integers(0, 6000))
def test_progress_stays_small_and_still_says_what_equal_steps_took(count, back):
    ledger = Ledger(START, label="step")
    for step in range(1, count + 1):
        ledger.reach(START + step, step)
    ledger.go_back(back)
    assert len(ledger.progress) <= 1001
    assert ledger.seconds["lost_work"] == pytest.approx(max(0, count - back), abs=1e-3)


def test_going_back_between_two_reports_takes_their_steps_for_equal():
    ledger = Ledger(START, label="step")
    ledger.reach(START + 10, 10)
    ledger.mark(START + 12, "idle")
    ledger.go_back(5)
    assert (ledger.seconds["step"], ledger.seconds["lost_work"]) == (5, 7)


def test_a_clock_that_is_set_back_spends_nothing():
    ledger = ledger_of([(5, "step"), (-3, "idle"), (3, "step")])
    assert ledger.seconds["step"] == 0
    assert ledger.wall_s == 5


def test_the_summary_names_goodput_and_the_largest_losses():
    ledger = ledger_of(
        [(20, "step"), (7000, "save"), (90, "compile"), (30, "restore"), (2, "idle")]
    )
    assert ledger.summary() == (
        "goodput 98.0% of 1 h 59 min; lost: save 1 min 30 s, compile 30.0 s, start 20.0 s"
    )
    assert Ledger(START).summary() == "goodput 0.0% of 0.0 s; lost: nothing"


@pytest.mark.parametrize(
    "change",
    [
        {"label": "party"},
        {"seconds": {}},
        {"seconds": dict.fromkeys(LABELS, -1)},
        {"progress": []},
        {"progress": [(0, 0.0), (5, 2.0), (3, 1.0)]},
        {"time": None},
    ],
)
def test_data_that_are_no_ledger_are_refused(change):
    with pytest.raises(ValueError, match=r"no ledger|tuple.index|expected seconds|goes back"):
        Ledger.from_dict({**Ledger(START).as_dict(), **change})
