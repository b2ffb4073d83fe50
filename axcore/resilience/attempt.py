"""`Attempt`: one start of all processes of a run, watched until they end or something is wrong.

`find_hang` says which process makes no progress, and which one keeps the others waiting.
"""

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, Self

import attrs

from axcore.launch.children import (
    ProcessStart,
    StopRequests,
    first_failure,
    shell_exit_code,
)
from axcore.launch.local import end_others, mark_of
from axcore.resilience.heartbeat import Beat
from axcore.resilience.policy import (
    HUNG,
    LOST,
    STOPPED,
    Failure,
    Policy,
    cause_of,
    run_exit_code,
)
from axcore.resilience.standby_workers import StandbyProcess, TrackedProcess

WAITING = "step"
"""The phase of a process that only waits for the others, in a collective."""

_WAITS = ("/axcore/distributed/host_collectives.py",)
"""Where a main thread is while it waits for other processes, or for a save that they share."""

# How late a lost process without a closed pipe is noticed at most.
_WAKE_S = 0.05
# A step of a small model takes a millisecond; to wake for each beat
# of each of many processes would take a core from the trainers.
_BATCH_S = 0.01
# Long enough for hundreds of threads' stacks on a host that
# swaps; a process that never answers is waited for so long.
_STACKS_S = 10.0
# faulthandler writes thread by thread, and nothing says when
# it is done: a file that has not grown for so long is whole.
_SETTLE_S = 0.1
# Longer than the error of a lost collective takes to arrive, shorter
# than people wait. A killed peer is usually reported within 10 ms.
_CULPRIT_S = 10.0
# For processes that are about to fail by themselves to say so in their own words.
_GRACE_S = 5.0


class Attempt:
    """All processes of a run, from their start to their end; leaving the context ends them.

    Attributes:
        processes: In the order of their indices.
        began: When they were started; monotonic seconds.
        hang: What ended the attempt, if a hang did.
        is_stopping: Whether it was asked to end, for the next one to begin.
        stacks: Of each process, where a hang did.
    """

    def __init__(
        self,
        starts: Sequence[ProcessStart],
        policy: Policy,
        stop: StopRequests,
        begin: Callable[[ProcessStart, int, str], TrackedProcess] = TrackedProcess,
    ) -> None:
        self.began = time.monotonic()
        self.processes: list[TrackedProcess] = []
        self.hang: Hang | None = None
        self.is_stopping = False
        self.stacks: list[str] = []
        self._starts = starts
        self._policy = policy
        self._stop = stop
        self._begin = begin
        self._selector = selectors.DefaultSelector()
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Self:
        # First, so that it is closed last: `_close` still reads from pipes that are registered.
        self._resources.callback(self._selector.close)
        for index, start in enumerate(self._starts):
            process = self._begin(start, index, mark_of(index, len(self._starts)))
            self.processes.append(process)
            self._resources.callback(self._close, process)
            self._selector.register(process.pipe, selectors.EVENT_READ, process)
        # All started before any is reached by signals: a Ctrl-C in
        # between is counted by `stop`, and passed on by this call.
        self._stop.reach([process.child for process in self.processes])
        return self

    def __exit__(self, *_: object) -> None:
        # Before the kills: a signal passed on to a pid that
        # was reaped and given out again would hit a stranger.
        self._stop.reach(())
        for process in self.processes:
            process.child.kill()  # all at once, before any is waited for
        self._resources.close()

    def _close(self, process: TrackedProcess) -> None:
        # Survivors were taken out of the list and must outlive this attempt.
        if process in self.processes:
            process.close()

    # Only of the process that failed: the others may have gone one
    # step further on the devices, or not yet have reported as far.
    def last_step(self, failure: Failure) -> int:
        """Return the furthest step of the process that failed; others may say theirs late."""
        return self.processes[failure.process].last_step

    @property
    def is_stepping(self) -> bool:
        """Whether all have made a step, counted from the first one that each has reported."""
        return all(one.beat.step > one.first_step >= 0 for one in self.processes)

    def watch(self) -> Iterator[int]:
        """Yield the step that all have reached, many times a second, while nothing is wrong."""
        while not self._is_over():
            self._listen()
            # The yield comes before the check for hangs, so that
            # whoever iterates has seen the newest step by then.
            yield min(process.beat.step for process in self.processes)
            # A process that ended is silent for ever; its exit code is what counts.
            living = [one for one in self.processes if one.child.exit_code() is None]
            self.hang = find_hang(living, self._policy, time.monotonic())
            if self.hang is not None:
                self._collect_stacks()
                self.hang = self.hang.named_by(self.stacks)
                return

    def ask_to_stop(self) -> None:
        """Let all processes save, and end."""
        self.is_stopping = True
        for process in self.processes:
            process.child.send(signal.SIGTERM)

    def survivors(self) -> list[StandbyProcess]:
        """Make living processes leave; return those that did, for another attempt."""
        for process in self.processes:
            if isinstance(process, StandbyProcess):
                process.ask_to_leave()
        # With a limit: a survivor may be in a collective that no error wakes.
        end = time.monotonic() + self._policy.stand_down_s
        while not all(map(self._is_settled, self.processes)) and time.monotonic() < end:
            self._listen()
        found = [
            one
            for one in self.processes
            if isinstance(one, StandbyProcess)
            and one.has_stood_down
            and one.child.exit_code() is None
        ]
        self._stop.reach(())
        self.processes = [one for one in self.processes if one not in found]
        return found

    @staticmethod
    def _is_settled(process: TrackedProcess) -> bool:
        return process.has_stood_down or process.child.exit_code() is not None

    def outcome(self) -> Failure | int:
        """Return what went wrong, or the exit code of a run that ended well or was stopped."""
        if self.hang is not None:
            return self.hang.failure()
        # The process that is seen to end first is often not the one that failed first: the others
        # Which one ended is decided by the exit codes then,
        # not by the order in which this loop happened to look.
        # report within milliseconds that they lost it.
        self._await_culprit()
        failed = first_failure([process.child for process in self.processes])
        if failed is None:
            stood_down = [process for process in self.processes if process.has_stood_down]
            return self._failure(stood_down[0], LOST) if stood_down else 0
        code = failed.exit_code() or 0
        # A stop that was asked for explains every code: trainers end
        # with signals' codes, and one may lose another on the way.
        if code == STOPPED or self._stop.count:
            return shell_exit_code(code)
        return self._failure(self.processes[failed.index], code)

    def _await_culprit(self) -> None:
        """Wait a moment where processes only say that they lost another: its end shows which."""
        end = time.monotonic() + _CULPRIT_S
        while (
            # LOST and running only: as soon as one has another code, that one is the culprit.
            {one.child.exit_code() for one in self.processes} <= {None, LOST}
            and not all(map(self._is_settled, self.processes))
            and not self._stop.count
            and time.monotonic() < end
        ):
            self._listen()

    def _failure(self, process: TrackedProcess, code: int) -> Failure:
        cause = cause_of(code)
        if cause == "refused":  # the others may be about to report the same
            # Errors of the config are the same in all; ending the others at
            # once would cut off a better message than that of the first.
            end_others([process.child for process in self.processes], _GRACE_S)
        if process.child.exit_code() is not None:
            # Reaped before its beats are read, for the last beat may still be in the pipe.
            process.child.end()  # its last lines are read
            process.read_beats()
        return Failure(
            cause=cause,
            process=process.child.index,
            exit_code=run_exit_code(code),
            step=process.beat.step,
            phase=process.beat.phase,
            what=process.child.describe_end(),
            error_tail=tuple(process.child.error_tail),
        )

    def _is_over(self) -> bool:
        codes = [process.child.exit_code() for process in self.processes]
        has_lost = any(codes) or any(process.has_stood_down for process in self.processes)
        # Where people asked to stop, processes end one after another, and none of them is a loss.
        return None not in codes or (has_lost and not (self._stop.count or self.is_stopping))

    def _listen(self) -> None:
        """Read beats; a pipe that closes, as its process ends, wakes it at once."""
        for key, _ in self._selector.select(_WAKE_S):
            process: TrackedProcess = key.data
            if not process.read_beats():
                # A closed pipe is always readable: left registered, it would make this loop spin.
                self._selector.unregister(process.pipe)
                # A process closes its pipe a moment before it can be reaped.
                process.child.wait(_WAKE_S)
        time.sleep(_BATCH_S)  # short steps are read in batches

    def _collect_stacks(self) -> None:
        for process in self.processes:
            process.ask_for_stacks()
        end = time.monotonic() + _STACKS_S
        is_whole = False
        # Twice the same length, and something from each: one look may catch a file half-written.
        while not is_whole and time.monotonic() < end:
            time.sleep(_SETTLE_S)
            before, self.stacks = self.stacks, [process.stacks() for process in self.processes]
            is_whole = all(self.stacks) and before == self.stacks


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
        """Return the hang as what ended the attempt."""
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
        """Return the hang without those to blame that only wait for others, by their stacks."""
        named = (self.culprit, *self.others)
        # If all of them wait for others, the stacks say nothing, and all stay named.
        first, *rest = [one for one in named if not _waits_for_others(stacks[one])] or named
        return attrs.evolve(self, culprit=first, others=tuple(rest))


def find_hang(processes: Sequence[Watched], policy: Policy, now: float) -> Hang | None:
    """Return the hang of a run that no longer makes progress, None while all do."""
    if not any(_is_silent(one, policy, now) or _is_stuck(one, policy, now) for one in processes):
        return None
    # `min`, since the order of the key is from most to least suspect.
    one = min(processes, key=lambda one: _suspicion(one, policy, now))
    least = _suspicion(one, policy, now)
    same = [other.index for other in processes if _suspicion(other, policy, now) == least][1:]
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
    # faulthandler writes "Thread 0x..." or "Current thread 0x...",
    # hence the missing letter. The main thread is the last one.
    main_thread = stacks.rpartition("hread 0x")[2]
    return any(one in main_thread for one in _WAITS)


def _suspicion(one: Watched, policy: Policy, now: float) -> tuple[bool, bool, int, bool]:
    """Sort first who is stopped, then silent, then behind, then busy with anything but a step."""
    # A process in the phase of a step may merely wait in a collective for the
    # one that is not; so of two at the same step the one elsewhere comes first.
    waits = one.beat.phase == WAITING
    return (not one.is_stopped, not _is_silent(one, policy, now), one.beat.step, waits)
