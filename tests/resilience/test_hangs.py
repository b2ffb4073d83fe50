"""No hang is for ever: it is noticed, the process that causes it is named, and stacks are kept."""

import attrs
import pytest

from axcore.resilience.attempt import Hang, find_hang
from axcore.resilience.heartbeat import Beat
from axcore.resilience.policy import EscalationLevel, Policy

LIMITS = {"beat_s": 5.0, "step_s": 6.0, "phase_s": {"start": 120.0, "save": 6.0}}

KINDS = {
    "data_wait": ("data_wait", "made no progress"),
    "save": ("save", "made no progress"),
    "SIGSTOP": ("step", "is stopped (SIGSTOP)"),
    "gil": ("step", "a thread holds the GIL"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.quick_one_in(8)
@pytest.mark.every_case
def test_a_hang_is_noticed_named_and_ended(supervisor, events, tmp_path, capfd, name, index):
    assert supervisor([index, 6, name, 1], **LIMITS).run() == 0
    (hang,) = events("hang")
    phase, what = KINDS[name]
    assert (hang["lost_process"], hang["step"], hang["phase"]) == (index, 6, phase)
    assert what in hang["what"]
    stacks = tmp_path / "run" / hang["stacks"]
    texts = [(stacks / f"process_{i}.txt").read_text(encoding="utf-8") for i in (0, 1)]
    assert ["beating_worker.py" in text for text in texts] == [True, True], texts
    assert "in trigger" in texts[index]
    shown = capfd.readouterr().err
    assert f"[supervisor] process {index} " in shown
    assert what in shown


@pytest.mark.slow
def test_a_run_that_hangs_again_and_again_ends_with_a_code_of_its_own(supervisor, events):
    escalation = {"hung": (EscalationLevel(times=1),)}
    faults = [[1, step, "data_wait", 1] for step in (3, 6)]
    assert supervisor(*faults, escalation=escalation, **LIMITS).run() == 12
    assert len(events("hang")) == 2


@attrs.frozen(kw_only=True)
class Seen:
    """What a supervisor knows of a process whose steps take 0.5 s."""

    beat: Beat
    beat_at: float
    progress_at: float
    index: int = 0
    typical_step_s: float = 0.5
    is_stopped: bool = False


@pytest.mark.parametrize(
    ("phase", "limit_s"), [("save", 60.0), ("step", 10.0), ("data_wait", 10.0)]
)
def test_short_steps_and_long_phases_within_their_limits_are_no_hang(phase, limit_s):
    policy = Policy(beat_s=3.0, step_s=4.0, phase_s={"save": 60.0}, step_factor=20.0)
    for stuck_s, silent_s, hangs in (
        (limit_s - 0.1, 0.0, False),
        (limit_s + 0.1, 0.0, True),
        (0.0, 2.9, False),
        (0.0, 3.1, True),
    ):
        one = Seen(beat=Beat(5, phase), beat_at=100.0 - silent_s, progress_at=100.0 - stuck_s)
        assert (find_hang([one], policy, 100.0) is not None) is hangs


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
