"""Hangs: which process makes no progress, and which one keeps the others waiting."""

from collections.abc import Sequence
from typing import Protocol

import attrs

from axcore.resilience.failure import HUNG, Failure
from axcore.resilience.heartbeat import Beat
from axcore.resilience.policy import Policy

WAITING = "step"
"""The phase of a process that only waits for the others, in a collective."""

_WAITS = ("/axcore/distributed/host_collectives.py", "/orbax/checkpoint/_src/asyncio_utils.py")
"""Where a main thread is while it waits for other processes, or for a save that they share."""


class Watched(Protocol):
    """What is known of a process that lives."""

    index: int
    beat: Beat
    beat_at: float
    progress_at: float

    @property
    def typical_step_s(self) -> float | None:
        """The time of recent steps."""

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel stopped it."""


@attrs.frozen(kw_only=True)
class Hang:
    """No progress for longer than the policy allows.

    Args:
        culprit: The index of the process that keeps the others waiting, as far as is known.
        others: Processes that are in the same step and phase, and may be to blame as well.
        what: What it does, as people read it.
        beat: Where it is.
        seconds: Since it made progress.
    """

    culprit: int
    others: tuple[int, ...]
    what: str
    beat: Beat
    seconds: float

    def failure(self) -> Failure:
        """Returns the hang as what ended the attempt."""
        others = ", ".join(map(str, self.others))
        return Failure(
            cause="hung",
            process=self.culprit,
            exit_code=HUNG,
            step=self.beat.step,
            phase=self.beat.phase,
            what=f"{self.what}, nor did {others}," if others else self.what,
        )

    def named_by(self, stacks: Sequence[str]) -> "Hang":
        """Returns the hang without those to blame that only wait for others, by their stacks."""
        named = (self.culprit, *self.others)
        first, *rest = [one for one in named if not _waits_for_others(stacks[one])] or named
        return attrs.evolve(self, culprit=first, others=tuple(rest))


def find_hang(processes: Sequence[Watched], policy: Policy, now: float) -> Hang | None:
    """Returns the hang of a run that no longer makes progress, None while all do."""
    if not any(_is_silent(one, policy, now) or _is_stuck(one, policy, now) for one in processes):
        return None
    one = min(processes, key=lambda one: _blame(one, policy, now))
    least = _blame(one, policy, now)
    same = [other.index for other in processes if _blame(other, policy, now) == least][1:]
    is_silent = _is_silent(one, policy, now)
    seconds = now - (one.beat_at if is_silent else one.progress_at)
    if one.is_stopped:
        what = f"is stopped (SIGSTOP), silent for {seconds:.1f} s,"
    elif is_silent:
        what = f"is silent for {seconds:.1f} s: a thread holds the GIL, or it gets no CPU,"
    else:
        what = f"made no progress for {seconds:.1f} s"
    return Hang(culprit=one.index, others=tuple(same), what=what, beat=one.beat, seconds=seconds)


def _is_silent(one: Watched, policy: Policy, now: float) -> bool:
    return now - one.beat_at > policy.beat_s


def _is_stuck(one: Watched, policy: Policy, now: float) -> bool:
    return now - one.progress_at > policy.limit_s(one.beat.phase, one.typical_step_s)


def _waits_for_others(stacks: str) -> bool:
    """Whether the main thread, which is written last, waits for other processes."""
    main_thread = stacks.rpartition("hread 0x")[2]
    return any(one in main_thread for one in _WAITS)


def _blame(one: Watched, policy: Policy, now: float) -> tuple[bool, bool, int, bool]:
    """Sorts first who is stopped, then silent, then behind, then busy with anything but a step."""
    waits = one.beat.phase == WAITING
    return (not one.is_stopped, not _is_silent(one, policy, now), one.beat.step, waits)
