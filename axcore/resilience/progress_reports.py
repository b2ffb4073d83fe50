"""`ProgressReports`: the observer of a run that reports steps and phases to the supervisor."""

from axcore.resilience.heartbeat import Heartbeat
from axcore.trainer import Event, PhaseStarted, RolledBack, RunStarted, StepsDone


class ProgressReports:
    """Keeps a heartbeat's phase, and the step that is under way, up to date."""

    sees_phases = True

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._step = -1

    def __call__(self, event: Event) -> None:
        """Reports what the event begins."""
        if isinstance(event, PhaseStarted):
            self._step += event.label == "data_wait" and self._step >= 0  # the next step's batch
            self._heartbeat.report(step=self._step, phase=event.label)
        elif isinstance(event, RunStarted | StepsDone | RolledBack):
            self._step = event.step
            self._heartbeat.report(step=self._step)
