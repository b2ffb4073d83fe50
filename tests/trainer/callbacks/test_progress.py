"""The time left is that of steps, not of what comes once before them."""

from types import SimpleNamespace

from axcore.trainer.callbacks import progress
from axcore.trainer.callbacks.events import StepsDone


def done(step, step_time_s):
    return StepsDone(step=step, metrics={"step_time_s": step_time_s})


def test_the_time_left_leaves_out_what_came_before_the_first_report(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    clock = progress.Clock(SimpleNamespace(step=0, max_steps=100))
    now[0] = 600.0  # of compiling
    assert clock.left(done(10, 2.0)) == "3m00s"
    now[0] += 30.0
    assert clock.left(done(20, 2.0)) == "4m00s"
    now[0] += 60 * 3600.0
    assert clock.left(done(99, 2.0)) == "40m27s"
