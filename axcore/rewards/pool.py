"""`RewardPool`: the rewards of completions, and which of them failed.

Cheap rewards run here; those of `WorkerReward` in processes, each reward in its own, so that a slow
one keeps none of the others waiting. A completion whose reward fails has nan, never a number.
"""

import queue
import sys
import threading
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from os import cpu_count
from pathlib import Path

import attrs

from axcore.config import Fraction, NonNegativeInt, PositiveInt, config
from axcore.errors import DataError
from axcore.resilience.event_log import EventLog
from axcore.rewards.reward import (
    BatchReward,
    Reward,
    ScoreRequest,
    WorkerReward,
    checked_score,
)
from axcore.rewards.worker import NotScored, RewardWorker, WorkerNotStarted, worker_setup
from axcore.rewards.worker_process import SHOWN

_MAX_WORKERS = 8
_MAX_AT_A_TIME, _TURNS = 32, 8
"""Completions that a worker is handed at once, and how often it is handed some in a step."""

_LONGEST_END_S = 10.0

_SHOWN_TEXT = 200
_NUM_PRINTED, _NUM_LOGGED, _NUM_RAISED = 3, 20, 3
"""How many failures of a reward a process prints, writes to the run's events, and has in the error
that stops the run. All are counted in the metrics."""


@config
class FailureBudget:
    """How many completions may stay without a reward before a run stops.

    Args:
        max_failed_fraction: Share of the completions of the newest steps that a reward may fail
            for.
        over_steps: How many steps that is; an evaluation counts as one.
        num_allowed: So many may fail whatever the share.
    """

    max_failed_fraction: Fraction = 0.1
    over_steps: PositiveInt = 10
    num_allowed: NonNegativeInt = 10


@attrs.frozen
class _Failure:
    request: ScoreRequest
    error: str
    details: str


class RewardPool:
    """Scores completions by several rewards.

    Args:
        rewards: What is computed, by name.
        budget: How many may fail.
    """

    def __init__(
        self, rewards: Mapping[str, Reward.Config], budget: FailureBudget | None = None
    ) -> None:
        self._budget = budget or FailureBudget()
        self._rewards = {name: cfg.build() for name, cfg in rewards.items()}
        self._groups: dict[str, _WorkerGroup] = {}
        self._newest: dict[str, deque[tuple[int, int]]] = {
            name: deque(maxlen=self._budget.over_steps) for name in rewards
        }
        self._num_failed: Counter[str] = Counter()
        self._log: EventLog | None = None
        # Also where nobody closes it: at the latest when the interpreter ends.
        self._end = weakref.finalize(self, _end_all, self._groups)

    def check(self) -> None:
        """Check that this machine can compute the rewards.

        Raises:
            ConfigError: It cannot.
        """
        for reward in self._rewards.values():
            reward.check()

    def log_to(self, directory: Path) -> None:
        """Write failures to the events of a run from now on, for `axcore runs why`."""
        self._log = EventLog(directory, 0)

    def score(self, requests: Sequence[ScoreRequest]) -> list[dict[str, float]]:
        """Return the rewards of completions by name, nan where one failed.

        Raises:
            DataError: A reward failed for more completions than the budget allows, or its process
                cannot start.
        """
        waiting = {
            name: self._group(name, reward).submit(requests)
            for name, reward in self._rewards.items()
            if isinstance(reward, WorkerReward)
        }
        found: dict[str, list[float]] = {}
        try:
            for name, reward in self._rewards.items():
                scores = waiting.get(name) or _all_scored_here(reward, requests)
                found[name] = self._collected(name, requests, scores)
        except BaseException:
            # What is still computed would keep the run from its end.
            self.close()
            raise
        return [{name: found[name][i] for name in found} for i in range(len(requests))]

    def close(self) -> None:
        """End the processes, and wait until they have; they start again where more is scored."""
        groups = [*self._groups.values()]
        _end_all(self._groups)
        for group in groups:
            group.join()

    def _group(self, name: str, reward: WorkerReward) -> "_WorkerGroup":
        if name not in self._groups:
            self._groups[name] = _WorkerGroup(name, reward.config)
        return self._groups[name]

    def _collected(
        self, name: str, requests: Sequence[ScoreRequest], scores: "Sequence[Future[float]]"
    ) -> list[float]:
        """Return scores in the order of the requests, as they come; count those that failed."""
        found, failures = [], []
        for request, score in zip(requests, scores, strict=True):
            try:
                found.append(score.result())
            except WorkerNotStarted as error:
                raise _not_started(name, error) from None
            except NotScored as error:
                found.append(float("nan"))
                failures.append(_Failure(request, error.error, error.details))
                self._report(name, failures[-1])
                self._check_budget(name, len(requests), failures)
        self._newest[name].append((len(requests), len(failures)))
        return found

    def _check_budget(self, name: str, num_requests: int, failures: Sequence[_Failure]) -> None:
        """Stop at the failure that is one too many, without waiting for the rest of the step."""
        # The oldest of the steps leaves when this one is counted.
        before = [*self._newest[name]][-(self._budget.over_steps - 1) :]
        before = before if self._budget.over_steps > 1 else []
        num = num_requests + sum(scored for scored, _ in before)
        num_failed = len(failures) + sum(failed for _, failed in before)
        budget = self._budget
        if num_failed <= max(budget.num_allowed, budget.max_failed_fraction * num):
            return
        first = "\n".join(_described(one) for one in failures[:_NUM_RAISED])
        raise DataError(
            f"the reward {name!r} failed for {num_failed} of {num} completions in "
            f"{len(before) + 1} steps, and {budget.max_failed_fraction:.0%} may "
            f"({budget.num_allowed} in any case). The first of this step:\n{first}",
            where=f'data.rewards["{name}"]',
            hint="correct the reward; or let more completions go without it: "
            "--set data.reward_failures.max_failed_fraction=0.5",
        )

    def _report(self, name: str, failure: _Failure) -> None:
        self._num_failed[name] += 1
        number = self._num_failed[name]
        if number <= _NUM_PRINTED:
            more = f"; more are counted as failed.{name}" if number == _NUM_PRINTED else ""
            print(
                f"warning: the reward {name!r} failed: {failure.error}; the completion weighs "
                f"nothing{more}\n{_described(failure)}",
                file=sys.stderr,
                flush=True,
            )
        if self._log is not None and number <= _NUM_LOGGED:
            self._log.write(
                "reward_failed",
                reward=name,
                error=failure.error,
                number=number,
                prompt=failure.request.prompt[:_SHOWN_TEXT],
                completion=failure.request.completion[:_SHOWN_TEXT],
                details=failure.details,
            )


def _all_scored_here(reward: Reward, requests: Sequence[ScoreRequest]) -> "list[Future[float]]":
    """Return the scores of a reward that runs in this process."""
    if isinstance(reward, BatchReward):
        try:
            values = reward.score_all(requests)
        except Exception:
            values = []  # each by itself, so that one that cannot be scored fails alone
        if len(values) == len(requests):
            return [_scored(partial(checked_score, value)) for value in values]
    return [_scored(partial(_score, reward, one)) for one in requests]


def _score(reward: Reward, request: ScoreRequest) -> float:
    return checked_score(reward.score(request.prompt, request.completion, request.fields))


def _scored(compute: Callable[[], float]) -> "Future[float]":
    score: Future[float] = Future()
    try:
        score.set_result(compute())
    except Exception as error:
        shown = "".join(traceback.format_exception(error))[-SHOWN:]
        score.set_exception(NotScored(f"it raised {type(error).__name__}: {error}", shown))
    return score


def _described(failure: _Failure) -> str:
    """Return a failure as people read it, in a few lines."""
    request = failure.request
    lines = [
        f"  prompt:     {request.prompt[:_SHOWN_TEXT]!r}",
        f"  completion: {request.completion[:_SHOWN_TEXT]!r}",
        f"  error:      {failure.error}",
    ]
    return "\n".join([*lines, *(f"    {line}" for line in failure.details.splitlines())])


def _not_started(name: str, error: WorkerNotStarted) -> DataError:
    details = "".join(f"\n    {line}" for line in error.details.splitlines())
    return DataError(
        f"the reward {name!r} cannot be made in a process of its own: {error.error}{details}",
        where=f'data.rewards["{name}"]',
        hint="what it is made of must be importable from a file, and free of side effects",
    )


Job = tuple[ScoreRequest, "Future[float]"]


class _WorkerGroup:
    """The workers of one reward, each with a thread that waits for it."""

    def __init__(self, name: str, cfg: WorkerReward.Config) -> None:
        self._name, self._cfg = name, cfg
        self._setup = worker_setup(cfg)
        self._jobs: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._is_ended = threading.Event()
        self._workers: list[RewardWorker] = []
        self._threads: list[threading.Thread] = []

    def submit(self, requests: Sequence[ScoreRequest]) -> "list[Future[float]]":
        """Return what will be the scores."""
        scores: list[Future[float]] = [Future() for _ in requests]
        jobs = list(zip(requests, scores, strict=True))
        most = self._cfg.num_workers or min(cpu_count() or 1, _MAX_WORKERS)
        # Several at a time, as handing one over takes longer than a quick reward; and few enough
        # that no worker is left with much while the others have ended.
        size = max(1, min(_MAX_AT_A_TIME, len(jobs) // (_TURNS * most)))
        for begin in range(0, len(jobs), size):
            self._jobs.put(jobs[begin : begin + size])
        for _ in range(min(most, len(jobs)) - len(self._workers)):
            worker = RewardWorker(self._setup, self._cfg.time_limit_s)
            self._workers.append(worker)
            # A daemon: nothing waits for a reward that hangs when the interpreter ends.
            thread = threading.Thread(
                target=partial(_serve, worker, self._jobs, self._is_ended),
                name=f"reward {self._name}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        return scores

    def end(self) -> None:
        """End all processes, whatever they do; what waits for them fails."""
        self._is_ended.set()
        for worker in self._workers:
            worker.kill()
            self._jobs.put(None)

    def join(self) -> None:
        """Wait until the processes have ended; not for one that the system cannot end."""
        for thread in self._threads:
            thread.join(_LONGEST_END_S)


def _serve(
    worker: RewardWorker,
    queued: "queue.SimpleQueue[list[Job] | None]",
    is_ended: threading.Event,
) -> None:
    """Let a worker do jobs until the group ends."""
    while (jobs := queued.get()) is not None and not is_ended.is_set():
        try:
            found = worker.scores([request for request, _ in jobs])
            for (_, score), result in zip(jobs, found, strict=True):
                if isinstance(result, NotScored):
                    score.set_exception(result)
                else:
                    score.set_result(result)
                # Or a worker that was killed would start again for what is left.
                if is_ended.is_set():
                    break
        # Any error: whoever waits for the scores would wait for ever.
        except BaseException as error:
            for _, score in jobs:
                if not score.done():
                    score.set_exception(error)
    worker.close()


def _end_all(groups: "dict[str, _WorkerGroup]") -> None:
    for group in groups.values():
        group.end()
    groups.clear()
