"""`Blame`: which process of a run keeps failing while no other does, so that it is left out."""

from axcore.resilience.failure import Failure
from axcore.resilience.policy import Policy

_OF_ONE = ("killed", "hung", "corrupted")
"""Causes that lie with one process; a fault of the program is one of all, and a process that was
lost to others names only them."""

_MISFITS = (2, 3, 4)
"""Exit codes of processes whose number does not fit the config, its mesh or its target."""


class Blame:
    """Counts failures by process since the run last changed its number of processes."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._failed: list[tuple[float, int]] = []
        self._is_new = False

    def reason(self, failure: Failure, now: float, *, else_stops: bool) -> str:
        """Returns why the process that failed is to be left out; "" where it is not.

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
            return f"it failed {most} times in a row"
        return "no restarts are left" if else_stops else ""

    def start_again(self) -> None:
        """Forgets failures, since processes get other numbers."""
        self._failed.clear()
        self._is_new = True
