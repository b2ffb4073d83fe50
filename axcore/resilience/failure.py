"""`Failure`: why an attempt at a run ended, as a value."""

import signal
from typing import Any

import attrs

from axcore.launch.children import shell_exit_code
from axcore.resilience.policy import Cause

_FAULTS = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}
)
CRASHED = 1
LOST = 9
HUNG = 12
BUDGET_SPENT = 13
CORRUPTED = 15
STOPPED = 130
"""Exit codes, see docs/exit-codes.md."""


_CAUSES: dict[int, Cause] = {CRASHED: "crashed", LOST: "lost", CORRUPTED: "corrupted"}


@attrs.frozen(kw_only=True)
class Failure:
    """What went wrong in one attempt.

    Args:
        cause: The ladder of the policy that applies.
        process: The index of the process that is to blame.
        exit_code: How the run ends where nothing more is tried.
        step: The step that the process was at; -1 before the first.
        phase: What it did.
        what: What happened, as people read it, without the process's name.
        error_tail: The last lines of its stderr.
    """

    cause: Cause
    process: int
    exit_code: int
    step: int
    phase: str
    what: str
    error_tail: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"at step {self.step} ({self.phase})" if self.step >= 0 else f"in {self.phase}"
        return f"process {self.process} {self.what} {place}"

    def fields(self) -> dict[str, Any]:
        """Returns the failure as an event has it; "process" there is who writes."""
        values = attrs.asdict(self)
        return {"lost_process": values.pop("process"), **values}


def cause_of(code: int) -> Cause:
    """Returns why a process ended with a code, minus the signal where that ended it."""
    if code < 0:
        return "crashed" if -code in _FAULTS else "killed"
    if code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
        return "killed"
    return _CAUSES.get(code, "refused")


def describe_exit(code: int) -> str:
    """Returns an exit as people read it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def run_exit_code(code: int) -> int:
    """Returns how a run ends that lost a process with that code."""
    return LOST if cause_of(code) in ("killed", "lost") else shell_exit_code(code)
