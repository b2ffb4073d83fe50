"""`Policy`: what a supervisor does about a failure, how often, and what it calls a hang.

`Failure` is why an attempt ended, `Restarts` counts the answers that a policy has left, and
`FailureAttribution` finds the process that keeps failing while no other does.
"""

import collections
import signal
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import attrs

from axcore.config import NonNegativeInt, PositiveInt, config
from axcore.launch.children import shell_exit_code

Cause = Literal["killed", "crashed", "lost", "hung", "corrupted", "refused"]
"""Why an attempt ended: a signal from outside, a fault of the program, a process that lost another,
a process that made no progress, a device that changed parameters, or an error that another attempt
would meet again."""

Answer = Literal["restart_processes", "stop"]
CRASHED = 1
LOST = 9
HUNG = 12
BUDGET_SPENT = 13
CORRUPTED = 15
STOPPED = 130
"""Exit codes, see docs/exit-codes.md."""


_FAULTS = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}
)


_CAUSES: dict[int, Cause] = {CRASHED: "crashed", LOST: "lost", CORRUPTED: "corrupted"}


_OF_ONE = ("killed", "hung", "corrupted")
"""Causes in one process; a fault of the program is one of all, and a process that was
lost to others names only them."""

# A number of processes that cannot work looks like this on
# the first attempt after one was left out, and only then.
_MISFITS = (2, 3, 4)
"""Exit codes of processes whose number does not fit the config, its mesh or its target."""


@attrs.frozen(kw_only=True)
class Failure:
    """What went wrong in one attempt.

    Args:
        cause: The escalation of the policy that applies.
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
        """Return the failure as an event has it; "process" there is who writes."""
        values = attrs.asdict(self)
        return {"lost_process": values.pop("process"), **values}


def cause_of(code: int) -> Cause:
    """Return why a process ended with a code, minus the signal where that ended it."""
    if code < 0:
        # A program that corrupts its memory would do so again; SIGKILL
        # and SIGTERM come from a scheduler or the kernel's OOM killer.
        return "crashed" if -code in _FAULTS else "killed"
    # A shell or a container runtime in between turns the signal into 128 + its number.
    if code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
        return "killed"
    # What is not known is refused: an unknown code restarted
    # for ever costs more than one that a human starts again.
    return _CAUSES.get(code, "refused")


def run_exit_code(code: int) -> int:
    """Return how a run ends that lost a process with that code."""
    # Lost and killed are one to the outside: a scheduler restarts both.
    return LOST if cause_of(code) in ("killed", "lost") else shell_exit_code(code)


@config
class EscalationLevel:
    """One answer, and how often it may be given within the policy's window."""

    answer: Answer = "restart_processes"
    times: int = 10


@config
class Policy:
    """An escalation of answers for each cause; where all levels of one are spent, the run stops.

    Args:
        escalation: Answers by cause, the first that has some left; a cause without one stops the
            run.
        window_s: Answers older than this no longer count.
        attempts_at_one_step: A run that fails so often at one step, and never came further, stops.
        shrink_to: Least number of processes with which a run continues where one that keeps failing
            is left out; 0 leaves none out.
        failures_of_one: A process whose own the newest so many failures are is left out.
        backoff_s: Wait before an attempt that follows one without progress; doubled each time.
        beat_s: Seconds without a beat after which a living process is hung.
        phase_s: Seconds that a phase may take; the first step has that of `compile`.
        step_s: Seconds that any other phase may take, at least.
        step_factor: Any other phase may take that many times a recent step, where that is longer.
        in_process: Whether trainers that survive the loss of another keep their processes, and join
            the next attempt; those that cannot are started again.
        stand_down_s: Seconds that survivors have for it.
        host_s: Seconds without a word after which the agent of a host is lost.
        rejoin_s: Seconds that a run waits for hosts: for all at its start, and for enough of them
            where some were lost, before it continues with fewer or ends.
        standby_workers: Whether a standby worker waits for each process, to take its place without
            imports.
    """

    # By how much of it can be bad luck. `refused` has no entry.
    escalation: Mapping[str, tuple[EscalationLevel, ...]] = {
        # Preemption kills often and is nobody's fault; a device that changes bits is replaced.
        "killed": (EscalationLevel(times=100),),
        "crashed": (EscalationLevel(times=10),),
        "lost": (EscalationLevel(times=10),),
        "hung": (EscalationLevel(times=10),),
        "corrupted": (EscalationLevel(times=3),),
    }
    # A day: machines fail at some rate, so a run of weeks needs a budget that renews itself.
    window_s: float = 24 * 3600.0
    # One failure is chance and two may be; three at one step,
    # with the same batch and state, are the program's fault.
    attempts_at_one_step: int = 3
    shrink_to: NonNegativeInt = 0
    failures_of_one: PositiveInt = 3
    backoff_s: float = 1.0
    # A beat comes every 0.2 s. A minute is longer than any pause that swapping,
    # a page fault on a network file system or a garbage collection makes.
    beat_s: float = 60.0
    # Minutes to an hour: compiling a large model for thousands of
    # devices takes most of it, and a false alarm costs the compilation.
    phase_s: Mapping[str, float] = {
        "start": 900.0,
        "compile": 3600.0,
        "restore": 1800.0,
        "evaluation": 3600.0,
        "save": 1800.0,
    }
    # Longer than the slowest step that waits for data from a cold object store.
    step_s: float = 300.0
    # A run with steps of a minute needs more than `step_s`,
    # and steps vary with sequence lengths and input stalls.
    step_factor: float = 20.0
    in_process: bool = False
    # A survivor that an error wakes leaves within milliseconds;
    # to wait longer costs more than a restart saves.
    stand_down_s: float = 3.0
    # As long as a process may be silent: both are a machine that does not answer.
    host_s: float = 60.0
    # Minutes, since a host that is started again pulls an image and imports first.
    rejoin_s: float = 300.0
    standby_workers: bool = True

    def limit_s(self, phase: str, typical_step_s: float | None) -> float:
        """Return how long a process may make no progress in a phase.

        Args:
            phase: The phase it is in.
            typical_step_s: The time of recent steps; None before the first one has ended.
        """
        if phase in self.phase_s:
            return self.phase_s[phase]
        if typical_step_s is None:
            # The first step compiles, which no phase says while `jit` does it.
            return max(self.step_s, self.phase_s.get("compile", 0.0))
        return max(self.step_s, self.step_factor * typical_step_s)


class Decision(NamedTuple):
    """What to do, why, and how long to wait before."""

    answer: Answer | Literal["leave_out"]
    reason: str
    wait_s: float = 0.0


class Restarts:
    """The answers given so far, by cause, and the attempts that ended at one step.

    Attributes:
        count: Answers given, but for the last one, to stop.
    """

    def __init__(self, policy: Policy) -> None:
        self.count = 0
        self._policy = policy
        self._ends: collections.Counter[int] = collections.Counter()
        self._given: list[tuple[float, str, Answer]] = []
        self._attribution = FailureAttribution(policy)

    def decide(self, failure: Failure, last_step: int, processes: int = 1) -> Decision:
        """Return the answer to a failure.

        Args:
            failure: What went wrong.
            last_step: How far the process came that failed.
            processes: How many the attempt had.
        """
        now = time.monotonic()
        decision = self._restart(failure, last_step, now)
        # The attribution sees every failure, also those that
        # end the run, or its row of failures would have gaps.
        reason = self._attribution.reason(failure, now, else_stops=decision.answer == "stop")
        if reason and processes > self._policy.shrink_to > 0:
            self._attribution.start_again()
            # Attempts before were of another set of processes,
            # so they say nothing of how far this one comes.
            self._ends.clear()
            decision = Decision("leave_out", reason)
        self.count += decision.answer != "stop"
        return decision

    def _restart(self, failure: Failure, last_step: int, now: float) -> Decision:
        """Return the answer of the escalation, where another attempt may come further."""
        # Counted before anything else decides: a failure that is
        # answered by leaving one out ended at this step as well.
        in_vain = self._ended_at(last_step)
        most = self._policy.attempts_at_one_step
        if failure.cause not in self._policy.escalation:
            return Decision("stop", "another attempt would meet the same error")
        if in_vain >= most:
            return Decision("stop", f"{most} attempts came no further than step {last_step}")
        answer = self._next_answer(failure.cause, now)
        if answer == "stop":
            return Decision("stop", f"the restart budget for {failure.cause!r} is spent")
        # Counts before its time is up, so a wait does not stretch the budget.
        self._given.append((now, failure.cause, answer))
        # The first repetition at a step comes at once; most failures are gone by then.
        wait_s = self._policy.backoff_s * 2 ** (in_vain - 2) if in_vain > 1 else 0.0
        return Decision(answer, f"attempt {self.count + 2}", wait_s)

    def _ended_at(self, step: int) -> int:
        """Note the end of an attempt; return how many ended there since one came further."""
        # `default=step`: the first failure ever is not progress.
        if step > max(self._ends, default=step):
            self._ends.clear()
        self._ends[step] += 1
        return self._ends[step]

    def _next_answer(self, cause: str, now: float) -> Answer:
        """Return the first answer of the escalation that was not given too often of late."""
        since = now - self._policy.window_s
        # By cause: a hundred preemptions must not use up what crashes may do.
        recent = [answer for at, why, answer in self._given if why == cause and at > since]
        for level in self._policy.escalation[cause]:
            if recent.count(level.answer) < level.times:
                return level.answer
        return "stop"


class FailureAttribution:
    """Failures by process, since the run last changed its number of processes."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._failed: list[tuple[float, int]] = []
        self._is_new = False

    def reason(self, failure: Failure, now: float, *, else_stops: bool) -> str:
        """Return why the process that failed is to be left out; "" where it is not.

        Args:
            failure: The newest one.
            now: Monotonic seconds.
            else_stops: Whether the policy has no other answer left.
        """
        if failure.cause not in _OF_ONE:
            is_misfit = self._is_new and failure.exit_code in _MISFITS
            return "so many processes do not fit the run" if is_misfit else ""
        self._is_new = False
        self._failed.append((now, failure.process))
        most, since = self._policy.failures_of_one, now - self._policy.window_s
        newest = [process for at, process in self._failed if at > since][-most:]
        if newest == [failure.process] * most:
            # A row without a gap: two hosts that fail in turn are a cause elsewhere.
            return f"it failed {most} times in a row"
        return "no restarts are left" if else_stops else ""

    def start_again(self) -> None:
        """Forget failures, since processes get other numbers."""
        self._failed.clear()
        self._is_new = True
