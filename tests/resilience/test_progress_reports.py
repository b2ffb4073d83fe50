"""A trainer's events reach the supervisor as the step and the phase that are under way."""

import os

from axcore.resilience.heartbeat import Beat, Heartbeat
from axcore.resilience.progress_reports import ProgressReports
from axcore.trainer import PhaseStarted, StepsDone
from axcore.trainer.callbacks.events import Observers


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
