"""`EnvironmentPool`: replies to many episodes at once, and which of them failed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from axcore.environments.environment import Environment, Reply, Turn, checked_reply
from axcore.resilience.event_log import EventLog
from axcore.rewards import FailureBudget
from axcore.rewards.failures import Failures
from axcore.rewards.worker import NotAnswered, WorkerNotStarted
from axcore.rewards.workers import Workers

WHERE = "data.environment"


@attrs.frozen
class TurnRequest:
    """A turn that an environment answers.

    Args:
        prompt: The prompt's text.
        turns: Those of the policy so far.
        fields: The other fields of the prompt's record.
    """

    prompt: str
    turns: tuple[Turn, ...]
    fields: Mapping[str, Any]

    @property
    def completion(self) -> str:
        """What the policy wrote last."""
        return self.turns[-1].text

    @property
    def seed_text(self) -> str:
        """What the random numbers of a call follow from."""
        return repr((self.prompt, [turn.text for turn in self.turns]))

    def ask(self, environment: Environment) -> Any:
        """Return what the environment returns."""
        return environment.reply(self.prompt, self.turns, self.fields)

    def checked(self, environment: Environment, value: Any) -> dict[str, Any]:
        """Return the reply as JSON.

        Raises:
            TypeError: It is not one.
            ValueError: It is not one.
        """
        return checked_reply(value, environment.roles).to_json()


class EnvironmentPool:
    """Replies of an environment.

    Args:
        cfg: The environment.
        budget: How many episodes may fail.
    """

    def __init__(self, cfg: Environment.Config, budget: FailureBudget) -> None:
        self.environment = cfg.build()
        name = type(self.environment).__name__
        self._config, self._workers = cfg, Workers()
        self._failures = Failures(
            what=f"the environment {name}",
            name="environment",
            event="environment_failed",
            where=WHERE,
            budget=budget,
        )

    def log_to(self, directory: Path) -> None:
        """Write failures to the events of a run from now on, for `axcore runs why`."""
        self._failures.log = EventLog(directory, 0)

    def begin(self, num_episodes: int) -> None:
        """Begin to count the failures of a step."""
        self._failures.begin(num_episodes)

    def replies(self, requests: Sequence[TurnRequest]) -> list[Reply | None]:
        """Return what comes after each turn; None where the environment failed.

        Raises:
            DataError: It failed for more episodes than the budget allows, or its process cannot
                start.
        """
        found: list[Reply | None] = []
        try:
            waiting = self._workers.submit("environment", self._config, requests)
            for request, reply in zip(requests, waiting, strict=True):
                try:
                    found.append(Reply.from_json(reply.result()))
                except WorkerNotStarted as error:
                    raise self._failures.not_started(error) from None
                except NotAnswered as error:
                    self.add_failure(request, error)
                    found.append(None)
        except BaseException:
            self.close()
            raise
        return found

    def add_failure(self, request: TurnRequest, error: NotAnswered) -> None:
        """Count an episode that failed.

        Raises:
            DataError: It is one too many.
        """
        self._failures.add(request, error)

    def end(self) -> None:
        """Count the step as done."""
        self._failures.end()

    def close(self) -> None:
        """End the processes, and wait until they have; they start again where more is asked."""
        self._workers.close()
