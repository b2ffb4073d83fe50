"""Labels of a job's seconds add up, whatever happens, and repeated steps are lost once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.resilience.ledger import LABELS, Ledger

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
    with pytest.raises(ValueError, match=r"no ledger|tuple.index|are no seconds|goes back"):
        Ledger.from_dict({**Ledger(START).as_dict(), **change})
