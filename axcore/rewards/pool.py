"""`RewardPool`: the rewards of completions, and which of them failed.

Cheap rewards run here; those of `WorkerReward` in processes, each reward in its own, so that a slow
one keeps none of the others waiting. A completion whose reward fails has nan, never a number.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from axcore.resilience.event_log import EventLog
from axcore.rewards.failures import FailureBudget, Failures
from axcore.rewards.reward import (
    BatchReward,
    Reward,
    ScoreRequest,
    WorkerReward,
    checked_score,
)
from axcore.rewards.worker import NotAnswered, WorkerNotStarted
from axcore.rewards.worker_process import SHOWN
from axcore.rewards.workers import Workers


class RewardPool:
    """Scores completions by several rewards.

    Args:
        rewards: What is computed, by name.
        budget: How many may fail.
    """

    def __init__(
        self, rewards: Mapping[str, Reward.Config], budget: FailureBudget | None = None
    ) -> None:
        self._rewards = {name: cfg.build() for name, cfg in rewards.items()}
        self._workers = Workers()
        self._failures = {
            name: Failures(
                what=f"the reward {name!r}",
                name=name,
                event="reward_failed",
                where=f'data.rewards["{name}"]',
                budget=budget or FailureBudget(),
            )
            for name in rewards
        }

    def check(self) -> None:
        """Check that this machine can compute the rewards.

        Raises:
            ConfigError: It cannot.
        """
        for reward in self._rewards.values():
            reward.check()

    def log_to(self, directory: Path) -> None:
        """Write failures to the events of a run from now on, for `axcore runs why`."""
        log = EventLog(directory, 0)
        for failures in self._failures.values():
            failures.log = log

    def score(self, requests: Sequence[ScoreRequest]) -> list[dict[str, float]]:
        """Return the rewards of completions by name, nan where one failed.

        Raises:
            DataError: A reward failed for more completions than the budget allows, or its process
                cannot start.
        """
        found: dict[str, list[float]] = {}
        try:
            waiting = {
                name: self._workers.submit(f"reward {name}", reward.config, requests)
                for name, reward in self._rewards.items()
                if isinstance(reward, WorkerReward)
            }
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
        self._workers.close()

    def _collected(
        self, name: str, requests: Sequence[ScoreRequest], scores: "Sequence[Future[Any]]"
    ) -> list[float]:
        """Return scores in the order of the requests, as they come; count those that failed."""
        found, failures = [], self._failures[name]
        failures.begin(len(requests))
        for request, score in zip(requests, scores, strict=True):
            try:
                found.append(float(score.result()))
            except WorkerNotStarted as error:
                raise failures.not_started(error) from None
            except NotAnswered as error:
                found.append(float("nan"))
                failures.add(request, error)
        failures.end()
        return found


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
        score.set_exception(NotAnswered(f"it raised {type(error).__name__}: {error}", shown))
    return score
