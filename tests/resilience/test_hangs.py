"""No hang is for ever: it is noticed, the process that causes it is named, and stacks are kept."""

import pytest

from axcore.resilience.hang import Hang
from axcore.resilience.heartbeat import Beat
from axcore.resilience.policy import Rung

KINDS = {
    "data_wait": ("data_wait", "made no progress"),
    "save": ("save", "made no progress"),
    "SIGSTOP": ("step", "is stopped (SIGSTOP)"),
    "gil": ("step", "a thread holds the GIL"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.quick_one_in(8)
def test_a_hang_is_noticed_named_and_ended(supervisor, events, tmp_path, capfd, name, index):
    assert supervisor([index, 6, name, 1], step_s=4.0).run() == 0
    (hang,) = events("hang")
    phase, what = KINDS[name]
    assert (hang["lost_process"], hang["step"], hang["phase"]) == (index, 6, phase)
    assert what in hang["what"]
    stacks = tmp_path / "run" / hang["stacks"]
    texts = [(stacks / f"process_{i}.txt").read_text(encoding="utf-8") for i in (0, 1)]
    assert ["beating_worker.py" in text for text in texts] == [True, True], texts
    assert "in strike" in texts[index]
    shown = capfd.readouterr().err
    assert f"[supervisor] process {index} " in shown
    assert what in shown


@pytest.mark.slow
def test_a_run_that_hangs_again_and_again_ends_with_a_code_of_its_own(supervisor, events):
    ladder = {"hung": (Rung(times=1),)}
    faults = [[1, step, "data_wait", 1] for step in (3, 6)]
    assert supervisor(*faults, ladder=ladder).run() == 12
    assert len(events("hang")) == 2


def test_short_steps_and_long_phases_within_their_limits_are_no_hang(supervisor, events):
    assert supervisor(steps=100).run() == 0
    assert events("hang") == []


WAITING = """Thread 0x1 (most recent call first):
  File "/lib/selectors.py", line 468 in select

Current thread 0x2 (most recent call first):
  File "/lib/axcore/distributed/host_collectives.py", line 163 in _read
"""
BUSY = """Thread 0x1 (most recent call first):
  File "/lib/axcore/distributed/host_collectives.py", line 163 in _read

Thread 0x2 (most recent call first):
  File "/home/me/callback.py", line 3 in on_save
"""


@pytest.mark.parametrize(
    ("stacks", "named"),
    [
        ((WAITING, BUSY), (1, ())),
        ((BUSY, WAITING), (0, ())),
        ((BUSY, BUSY), (0, (1,))),
        ((WAITING, WAITING), (0, (1,))),
        (("", WAITING), (0, ())),
    ],
)
def test_of_processes_in_one_phase_those_that_wait_for_others_are_not_to_blame(stacks, named):
    hang = Hang(culprit=0, others=(1,), what="made no progress", beat=Beat(5, "save"), seconds=9.0)
    found = hang.named_by(stacks)
    assert (found.culprit, found.others) == named
    assert ("nor did 1" in found.failure().what) is bool(named[1])
