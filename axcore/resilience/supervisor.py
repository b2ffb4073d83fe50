"""`Supervisor`: keeps a run going, over lost and hung processes, wherever they are placed.

It loads no jax, so it stays small, and nothing that breaks a trainer breaks it.

AXCORE_COORDINATION    "supervisor" says to trainers that the coordinator's address is served
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from axcore._jax_compat import serve_coordination
from axcore.launch.children import ProcessStart, StopRequests
from axcore.launch.process_info import COORDINATOR
from axcore.resilience.attempt import Attempt
from axcore.resilience.compile_cache import KEPT_STEPS_VARIABLE
from axcore.resilience.event_log import SUPERVISOR, RunLog
from axcore.resilience.policy import (
    BUDGET_SPENT,
    CORRUPTED,
    HUNG,
    STOPPED,
    Decision,
    Failure,
    Policy,
    Restarts,
)
from axcore.resilience.standby_workers import StandbyWorkers

COORDINATION_VARIABLE = "AXCORE_COORDINATION"
BY_SUPERVISOR = "supervisor"

# Ctrl-C within a wait is noticed after so long.
_POLL_S = 0.05
# Causes after which the processes that are left are sound. After
# a hang or a refusal all of them may be in the same trouble.
_LEAVES_SURVIVORS = ("killed", "crashed", "lost", "corrupted")


class Placement(Protocol):
    """Where the processes of a run are started."""

    def starts(self, stop: StopRequests) -> Sequence[ProcessStart]:
        """Return what each process of the next attempt is started with.

        Raises:
            ProcessError: There is nowhere to start them.
        """

    def leave_out(self, process: int) -> None:
        """Do without a process of the last attempt, or without its host."""

    def num_usable(self) -> int:
        """Return how many processes could be started now."""

    def can_grow(self) -> bool:
        """Whether the next attempt would have more processes than the last one."""


@attrs.define
class OnThisMachine:
    """All processes here, one less for each that is left out.

    Args:
        make: Returns what so many processes less are started with.
    """

    make: Callable[[int], Sequence[ProcessStart]]
    _left_out: int = attrs.field(default=0, init=False)
    _count: int = attrs.field(default=0, init=False)

    def starts(self, stop: StopRequests) -> Sequence[ProcessStart]:
        """Return what each process of the next attempt is started with."""
        made = self.make(self._left_out)
        self._count = len(made)
        return made

    def leave_out(self, process: int) -> None:
        """Do without a process of the last attempt; the others get new numbers."""
        self._left_out += 1
        self._count -= 1

    def num_usable(self) -> int:
        """Return how many processes the last attempt had, less those left out since."""
        return self._count

    def can_grow(self) -> bool:
        """A process that was left out does not come back."""
        return False


class Supervisor:
    """The processes of a run, started again as long as the policy allows."""

    def __init__(self, placement: Placement, directory: Path, policy: Policy) -> None:
        """Start nothing yet.

        Args:
            placement: Where processes are started, asked again for each attempt.
            directory: The run directory, which the trainers make.
            policy: What to do about failures.
        """
        self._placement = placement
        self._policy = policy
        self._restarts = Restarts(policy)
        self._standby_workers = StandbyWorkers()
        self._coordination = CoordinationService() if policy.in_process else None
        self._log = RunLog(directory, SUPERVISOR)

    def run(self) -> int:
        """Return the exit code of the run, once it ended well, was stopped, or is given up."""
        with (
            # Outside of the loop: signals count over all attempts, and the
            # folder of kept steps passes from one attempt to the next.
            StopRequests() as stop,
            tempfile.TemporaryDirectory(prefix="axcore-steps-") as self._kept_steps,
            contextlib.closing(self._standby_workers),
        ):
            while True:
                outcome, last_step = self._attempt(stop)
                if outcome is None:
                    continue
                if isinstance(outcome, int):
                    # Written before returning, while the directory still exists.
                    self._log.write("supervision_ended", exit_code=outcome)
                    return outcome
                # Decided before `stop` is looked at, so that a failure that
                # coincides with Ctrl-C is counted and logged like any other.
                usable = self._placement.num_usable()
                decision = self._restarts.decide(outcome, last_step, usable)
                # A failure after Ctrl-C is how processes end that were asked to.
                if stop.count:
                    decision = Decision("stop", "the run was asked to stop")
                if decision.answer == "stop":
                    return self._give_up(outcome, decision)
                what = "all processes start again"
                if decision.answer == "leave_out":
                    what = self._leave_out(outcome.process, decision.reason)
                self._report(f"{outcome}; {what}, {decision.reason}")
                self._log.write("restarting", answer=decision.answer, wait_s=decision.wait_s)
                _wait(decision.wait_s, stop)
                # Ctrl-C during the wait.
                if stop.count:
                    return self._give_up(outcome, Decision("stop", "the run was asked to stop"))

    def _starts(self, stop: StopRequests) -> Sequence[ProcessStart]:
        # Other hosts have a folder of their own.
        kept = {KEPT_STEPS_VARIABLE: self._kept_steps}
        return [
            start if start.host else attrs.evolve(start, environment={**start.environment, **kept})
            for start in self._placement.starts(stop)
        ]

    def _leave_out(self, process: int, reason: str) -> str:
        """Let the next attempt have one process less; return what that is called."""
        self._placement.leave_out(process)
        # They took the number of processes into account when they started.
        self._standby_workers.close()
        processes = self._placement.num_usable()
        self._log.write("left_out", left_out=process, processes=processes, reason=reason)
        return f"the run continues without process {process}, with {processes} in all"

    def _attempt(self, stop: StopRequests) -> tuple[Failure | int | None, int]:
        """Return how an attempt ended, None to begin the next one, and how far it came."""
        take = (
            self._standby_workers.take_lasting
            if self._policy.in_process
            else self._standby_workers.take
        )
        starts = self._served(self._starts(stop))
        # A stop before anybody was there to hear of it.
        if stop.count:
            return STOPPED, -1
        with Attempt(starts, self._policy, stop, take) as attempt:
            self._note_start(attempt)
            was_stepping = False
            for step in attempt.watch():
                # Events of the start are kept until then.
                self._log.flush()  # the trainers make the run directory some time after they start
                if attempt.is_stepping and not was_stepping:
                    was_stepping = True
                    # Not before: standby workers would take processor time from compilation, and a
                    # run that fails at its start needs none.
                    self._log.write("stepping", step=step, seconds=_since(attempt.began))
                    if self._policy.standby_workers:
                        self._standby_workers.prepare(list(map(self._announced, starts)))
                # Once it makes steps: its checkpoint is worth what the new start costs.
                if was_stepping and not attempt.is_stopping and self._placement.can_grow():
                    self._report("another host is there: the run saves, and continues on it, too")
                    self._log.write("growing", step=step)
                    attempt.ask_to_stop()
            outcome = attempt.outcome()
            if attempt.is_stopping and outcome == STOPPED and not stop.count:
                # They took the number of processes into account when they started.
                self._standby_workers.close()
                return None, -1
            if not isinstance(outcome, Failure):
                return outcome, -1
            last_step = attempt.last_step(outcome)
            # Noted inside the context, while the processes
            # that hang are still there to be asked for stacks.
            self._note(outcome, attempt)
            # After Ctrl-C nobody is needed any more.
            if not stop.count:
                self._keep_survivors(outcome, attempt)
            return outcome, last_step

    def _served(self, starts: Sequence[ProcessStart]) -> Sequence[ProcessStart]:
        """Serve the coordinator's address, where survivors are to keep their processes."""
        if self._coordination is None or len(starts) == 1:
            return starts
        try:
            return self._coordination.serve(starts)
        except Exception as error:  # whatever a jax that has changed may raise
            # Recovery in processes is an optimisation that rests on private
            # parts of jaxlib; without it the run is slower to recover, not lost.
            self._coordination = None
            self._log.write("in_process_unavailable", reason=repr(error))
            self._report(f"this jax cannot recover in processes, which restart instead: {error!r}")
            return starts

    def _announced(self, start: ProcessStart) -> ProcessStart:
        return start if self._coordination is None else self._coordination.announce(start)

    def _keep_survivors(self, failure: Failure, attempt: Attempt) -> None:
        """Let processes leave where another was lost; all others end."""
        # The attempt's exit kills who is still in its
        # list, and `survivors` takes out those that left.
        if self._coordination is None or failure.cause not in _LEAVES_SURVIVORS:
            return
        survivors = attempt.survivors()
        self._standby_workers.keep(survivors)
        kept = [one.index for one in survivors]
        self._log.write("stood_down", survivors=kept)
        living = [one.index for one in attempt.processes if one.child.exit_code() is None]
        if living or not kept:
            self._report(f"processes {living or 'all'} did not leave, and restart")

    def _note_start(self, attempt: Attempt) -> None:
        pids = [process.child.pid for process in attempt.processes]
        standby_workers = [process.index for process in attempt.processes if process.was_ready]
        self._log.write(
            "processes_started",
            attempt=self._restarts.count + 1,
            pids=pids,
            standby=standby_workers,
        )

    def _note(self, failure: Failure, attempt: Attempt) -> None:
        if attempt.hang is None:
            self._log.write("process_lost", **failure.fields())
            return
        folder = self._log.keep_stacks(attempt.stacks)
        values = {"others": attempt.hang.others, "seconds": round(attempt.hang.seconds, 3)}
        self._log.write("hang", **failure.fields(), **values, stacks=folder)
        if folder:
            self._report(f"{failure}; stacks of all processes: {folder}")

    def _give_up(self, failure: Failure, decision: Decision) -> int:
        is_spent = self._restarts.count > 0 and failure.cause in self._policy.escalation
        # Hangs and corruption keep their own code, which says more than that a budget is spent.
        code = (
            BUDGET_SPENT
            if is_spent and failure.exit_code not in (HUNG, CORRUPTED)
            else failure.exit_code
        )
        self._log.write(
            "supervision_ended", exit_code=code, reason=decision.reason, failure=str(failure)
        )
        self._report(f"{failure}; the run ends: {decision.reason}")
        for line in failure.error_tail if is_spent else ():
            # The errors of a fault that came back every time
            # are worth repeating at the end of a long log.
            self._report(f"  {line}")
        return code

    def _report(self, text: str) -> None:
        # stderr, flushed: the supervisor may be killed at any moment, and its last line says why.
        print(f"[supervisor] {text}", file=sys.stderr, flush=True)


def _wait(seconds: float, stop: StopRequests) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop.count:
        time.sleep(_POLL_S)


def _since(began: float) -> Any:
    return round(time.monotonic() - began, 3)


class CoordinationService:
    """jax's coordination service, in the supervisor, so that no trainer's end ends it.

    Each attempt has a service of its own.
    """

    def __init__(self) -> None:
        self._service: Any = None

    def serve(self, starts: Sequence[ProcessStart]) -> list[ProcessStart]:
        """Serve the address that processes are started with; return the starts that say so.

        Raises:
            Exception: This jax serves otherwise; the processes can serve themselves.
        """
        # Before the port is taken again: two services cannot listen on it.
        self.end()
        port = int(starts[0].environment[COORDINATOR].rpartition(":")[2])
        self._service = serve_coordination(port, len(starts))
        return [self.announce(start) for start in starts]

    @staticmethod
    def announce(start: ProcessStart) -> ProcessStart:
        """Return a start that says who serves."""
        variables = {**start.environment, COORDINATION_VARIABLE: BY_SUPERVISOR}
        return attrs.evolve(start, environment=variables)

    def end(self) -> None:
        """End the service; a process that has not left it aborts."""
        service, self._service = self._service, None
        if service is not None:
            service.shutdown()
