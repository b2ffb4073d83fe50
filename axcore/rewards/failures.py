"""`Failures`: what of a reward or an environment failed, said, counted, and bounded."""

import sys
from collections import deque
from typing import Protocol

import attrs

from axcore.config import Fraction, NonNegativeInt, PositiveInt, config
from axcore.errors import DataError
from axcore.resilience.event_log import EventLog
from axcore.rewards.worker import NotAnswered, WorkerNotStarted

_SHOWN_TEXT = 200
_NUM_PRINTED, _NUM_LOGGED, _NUM_RAISED = 3, 20, 3
"""How many failures of a reward a process prints, writes to the run's events, and has in the error
that stops the run. All are counted in the metrics."""


@config
class FailureBudget:
    """How many completions may stay without a reward before a run stops.

    Args:
        max_failed_fraction: Share of the completions of the newest steps that a reward, or the
            environment, may fail for.
        over_steps: How many steps that is; an evaluation counts as one.
        num_allowed: So many may fail whatever the share.
    """

    max_failed_fraction: Fraction = 0.1
    over_steps: PositiveInt = 10
    num_allowed: NonNegativeInt = 10


class FailedRequest(Protocol):
    """What somebody needs to know who looks into a failure."""

    @property
    def prompt(self) -> str:
        """The prompt's text."""
        ...

    @property
    def completion(self) -> str:
        """What the policy wrote."""
        ...


@attrs.frozen
class _Failure:
    request: FailedRequest
    error: NotAnswered


@attrs.define(kw_only=True)
class Failures:
    """Failures of one reward or environment.

    Args:
        what: What it is, as a subject of sentences.
        name: By which metrics and events know it.
        event: The kind of the run's events.
        where: Its place in the config.
        budget: How many completions it may fail for.
        log: The events of the run, once there is one.
    """

    what: str
    name: str
    event: str
    where: str
    budget: FailureBudget
    log: EventLog | None = None
    _num_failed: int = attrs.field(default=0, init=False)
    _num_of_step: int = attrs.field(default=0, init=False)
    _of_step: list[_Failure] = attrs.field(factory=list, init=False)
    _newest: deque[tuple[int, int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._newest = deque(maxlen=self.budget.over_steps)

    def begin(self, num_completions: int) -> None:
        """Begin a step, of so many completions."""
        self._num_of_step, self._of_step = num_completions, []

    def end(self) -> None:
        """Count the step as one of the newest."""
        self._newest.append((self._num_of_step, len(self._of_step)))

    def add(self, request: FailedRequest, error: NotAnswered) -> None:
        """Count a failure, and say so.

        Raises:
            DataError: It is one too many; the rest of the step is not waited for.
        """
        self._of_step.append(_Failure(request, error))
        self._report(self._of_step[-1])
        budget = self.budget
        # The oldest of the steps leaves when this one is counted.
        before = [*self._newest][-(budget.over_steps - 1) :] if budget.over_steps > 1 else []
        num = self._num_of_step + sum(asked for asked, _ in before)
        num_failed = len(self._of_step) + sum(failed for _, failed in before)
        if num_failed <= max(budget.num_allowed, budget.max_failed_fraction * num):
            return
        first = "\n".join(map(_described, self._of_step[:_NUM_RAISED]))
        raise DataError(
            f"{self.what} failed for {num_failed} of {num} completions in "
            f"{len(before) + 1} steps, and {budget.max_failed_fraction:.0%} may "
            f"({budget.num_allowed} in any case). The first of this step:\n{first}",
            where=self.where,
            hint="correct it, or let more completions go without it: "
            "--set data.reward_failures.max_failed_fraction=0.5",
        )

    def not_started(self, error: WorkerNotStarted) -> DataError:
        """Return the error of one that cannot be made in a process."""
        details = "".join(f"\n    {line}" for line in error.details.splitlines())
        return DataError(
            f"{self.what} cannot be made in a process of its own: {error.error}{details}",
            where=self.where,
            hint="what it is made of must be importable from a file, and free of side effects",
        )

    def _report(self, failure: _Failure) -> None:
        self._num_failed += 1
        number, request, error = self._num_failed, failure.request, failure.error
        if number <= _NUM_PRINTED:
            more = f"; more are counted as failed.{self.name}" if number == _NUM_PRINTED else ""
            print(
                f"warning: {self.what} failed: {error.error}; the completion weighs "
                f"nothing{more}\n{_described(failure)}",
                file=sys.stderr,
                flush=True,
            )
        if self.log is not None and number <= _NUM_LOGGED:
            self.log.write(
                self.event,
                reward=self.name,
                error=error.error,
                number=number,
                prompt=request.prompt[:_SHOWN_TEXT],
                completion=request.completion[:_SHOWN_TEXT],
                details=error.details,
            )


def _described(failure: _Failure) -> str:
    """Return a failure as people read it, in a few lines."""
    request, error = failure.request, failure.error
    lines = [
        f"  prompt:     {request.prompt[:_SHOWN_TEXT]!r}",
        f"  completion: {request.completion[:_SHOWN_TEXT]!r}",
        f"  error:      {error.error}",
    ]
    return "\n".join([*lines, *(f"    {line}" for line in error.details.splitlines())])
