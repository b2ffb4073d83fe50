"""`Restarts`: which answer a policy still has for a failure."""

import collections
import time
from typing import Literal, NamedTuple

from axcore.resilience.blame import Blame
from axcore.resilience.failure import Failure
from axcore.resilience.policy import Answer, Policy


class Decision(NamedTuple):
    """What to do, why, and how long to wait before."""

    answer: Answer | Literal["leave_out"]
    reason: str
    wait_s: float = 0.0


class Restarts:
    """Counts answers by cause, and attempts that ended at one step, since a run last came further.

    Attributes:
        count: Answers given, but for the last one, to stop.
    """

    def __init__(self, policy: Policy) -> None:
        self.count = 0
        self._policy = policy
        self._ends: collections.Counter[int] = collections.Counter()
        self._given: list[tuple[float, str, Answer]] = []
        self._blame = Blame(policy)

    def decide(self, failure: Failure, last_step: int, processes: int = 1) -> Decision:
        """Returns the answer to a failure.

        Args:
            failure: What went wrong.
            last_step: How far the process came that failed.
            processes: How many the attempt had.
        """
        now = time.monotonic()
        decision = self._restart(failure, last_step, now)
        reason = self._blame.reason(failure, now, else_stops=decision.answer == "stop")
        if reason and processes > self._policy.shrink_to > 0:
            self._blame.start_again()
            self._ends.clear()
            decision = Decision("leave_out", reason)
        self.count += decision.answer != "stop"
        return decision

    def _restart(self, failure: Failure, last_step: int, now: float) -> Decision:
        """Returns the answer of the ladder, where another attempt may come further."""
        in_vain = self._ended_at(last_step)
        most = self._policy.attempts_at_one_step
        if failure.cause not in self._policy.ladder:
            return Decision("stop", "another attempt would meet the same error")
        if in_vain >= most:
            return Decision("stop", f"{most} attempts came no further than step {last_step}")
        answer = self._rung(failure.cause, now)
        if answer == "stop":
            return Decision("stop", f"the restart budget for {failure.cause!r} is spent")
        self._given.append((now, failure.cause, answer))
        wait_s = self._policy.backoff_s * 2 ** (in_vain - 2) if in_vain > 1 else 0.0
        return Decision(answer, f"attempt {self.count + 2}", wait_s)

    def _ended_at(self, step: int) -> int:
        """Notes the end of an attempt; returns how many ended there since one came further."""
        if step > max(self._ends, default=step):
            self._ends.clear()
        self._ends[step] += 1
        return self._ends[step]

    def _rung(self, cause: str, now: float) -> Answer:
        """Returns the first answer of the ladder that was not given too often of late."""
        since = now - self._policy.window_s
        recent = [answer for at, why, answer in self._given if why == cause and at > since]
        for rung in self._policy.ladder[cause]:
            if recent.count(rung.answer) < rung.times:
                return rung.answer
        return "stop"
