"""Standby workers: for each process of a run one that waits, ready, to take its place.

`TrackedProcess` is a process of a run as its supervisor sees it, by its beats. `StandbyProcess` is
one that waits for its turn, `StandbyWorkers` has one for each process of a run.
"""

import collections
import json
import math
import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from axcore.config.json_files import parse_json
from axcore.launch.children import ProcessStart
from axcore.launch.local import mark_of
from axcore.resilience.heartbeat import Beat, Heartbeat
from axcore.resilience.this_machine import STANDBY_VARIABLE, THIS_MACHINE

READY = "standby"
"""The phase of a standby worker that has nothing left to import."""


_STOOD_DOWN = "stood_down"
"""The phase of a trainer that has left its attempt and waits for the next one."""


_LEAVE = "leave\n"
"""The line by which a supervisor asks a trainer to leave."""

# 19 on Linux: a standby worker imports for seconds, and takes only time that no trainer wants.
_LOWEST_PRIORITY = 19


_READ_BYTES = 1 << 16
# Some dozens: the limit for a hang follows a run whose steps
# become longer, and no single slow step moves the median.
_RECENT_STEPS = 32


class TrackedProcess:
    """A child, what it reported last and when, and a file for the stacks of its threads.

    Attributes:
        index: Of the process in its run.
        child: The process.
        beat: What it reported last.
        beat_at: When it reported anything, in monotonic seconds; infinite before it ever did.
        progress_at: When it reported something new.
        first_step: The first step it has reported; -1 where it reported none.
        last_step: The furthest one, alike.
        was_ready: Whether it was a standby worker, with nothing left to import when its turn came.
    """

    was_ready = False

    def __init__(
        self, start: ProcessStart, index: int, mark: str, *, takes_turns: bool = False
    ) -> None:
        """Start the process on its host."""
        self.index = index
        host = start.host or THIS_MACHINE
        self.child = host.start(start, index, mark, takes_turns=takes_turns)
        self.pipe = self.child.pipe
        self.beat = Beat()
        # Infinite, so that a process is not silent while it starts
        # and imports: the phase `start` has a limit of its own.
        self.beat_at = math.inf
        self.progress_at = self._step_at = time.monotonic()
        self.first_step = self.last_step = -1
        self._unread = b""
        self._step_times: collections.deque[float] = collections.deque(maxlen=_RECENT_STEPS)

    @property
    def typical_step_s(self) -> float | None:
        """The median time of recent steps; None before the first one has ended."""
        return statistics.median(self._step_times) if self._step_times else None

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped, as by SIGSTOP."""
        return self.child.is_stopped

    @property
    def has_stood_down(self) -> bool:
        """Whether the process has left its attempt, and waits for the next one."""
        return self.beat.phase == _STOOD_DOWN

    def read_beats(self) -> bool:
        """Take in what the process has reported; return whether it can report more."""
        try:
            data = os.read(self.pipe, _READ_BYTES)
        except BlockingIOError:
            return True
        # `read` may cut a line in two; the rest waits for the next one.
        *lines, self._unread = (self._unread + data).split(b"\n")
        if lines:
            self.beat_at = time.monotonic()
        for line in lines:
            self._take(Beat.read(line))
        return bool(data)

    def _take(self, beat: Beat) -> None:
        # A repeated beat says that the process lives, not that it gets anywhere.
        if beat == self.beat:
            return
        self.progress_at = self.beat_at
        if beat.step > self.beat.step >= 0:
            # A rollback or a fresh attempt lowers the step; that is not step time.
            steps = beat.step - self.beat.step
            self._step_times.append((self.beat_at - self._step_at) / steps)
        if beat.step != self.beat.step:
            self._step_at = self.beat_at
        self.beat, self.last_step = beat, max(self.last_step, beat.step)
        if self.first_step < 0:
            self.first_step = beat.step

    def ask_for_stacks(self) -> None:
        """Ask the process for its stacks; one that is stopped is woken to answer."""
        self.child.ask_for_stacks()

    def stacks(self) -> str:
        """Return the stacks that the process wrote so far."""
        return self.child.stacks()

    def close(self) -> None:
        """End the process and give its descriptors back."""
        self.child.end()
        # What it wrote before it ended is still in the pipe.
        self.read_beats()
        self.child.close()


class StandbyProcess(TrackedProcess):
    """A process that waits for its turn, the first one or another."""

    def __init__(self, start: ProcessStart, index: int, mark: str) -> None:
        """Start the process, with a way to say what changes until its turn."""
        super().__init__(start, index, mark, takes_turns=True)
        self._given = start
        self._waits = False

    def begin(self, start: ProcessStart) -> bool:
        """Let the process begin; return whether it lives to do so."""
        # Its program was imported for one command; another one would begin in the wrong program.
        same = (start.command, start.host) == (self._given.command, self._given.host)
        if not self.read_beats() or not same:
            return False
        # Until it has read its turn it reports that it waits. That is not progress of the new
        # attempt, nor has it left it.
        # Decided now, before the line is written: later beats may be of either turn.
        self._waits = self.was_ready = self.beat.phase in (READY, _STOOD_DOWN)
        self.progress_at = self._step_at = time.monotonic()
        self.beat, self.first_step, self.last_step = Beat(), -1, -1
        before = self._given.environment
        self._given = start
        # Differences alone. The child's environment may have been
        # changed by what it imported, and should stay so otherwise.
        new = {name: v for name, v in start.environment.items() if before.get(name) != v}
        self.child.send_line(json.dumps(new) + "\n")
        # It may have ended between the look and the write; its caller then starts another one.
        return self.child.exit_code() is None

    def _take(self, beat: Beat) -> None:
        """Pass over beats from before its turn, which it sends until it knows of it."""
        self._waits = self._waits and beat.phase in (READY, _STOOD_DOWN)
        if not self._waits:
            super()._take(beat)

    def ask_to_leave(self) -> None:
        """Ask the process to leave, if it has not yet."""
        self.child.send_line(_LEAVE)


class StandbyWorkers:
    """The standby workers of a run: started while it makes steps, used by the next attempt."""

    def __init__(self) -> None:
        self._waiting: dict[int, StandbyProcess] = {}
        self._survivors: dict[int, StandbyProcess] = {}

    def prepare(self, starts: Sequence[ProcessStart]) -> None:
        """Start a standby worker for each process whose program can wait, where there is none."""
        for index, start in enumerate(starts):
            if start.can_wait and index not in self._waiting:
                self._waiting[index] = StandbyProcess(start, index, mark_of(index, len(starts)))

    def keep(self, survivors: Iterable[StandbyProcess]) -> None:
        """Take processes that have left theirs; each takes its own place in the next attempt."""
        self._survivors.update({one.index: one for one in survivors})

    def take(self, start: ProcessStart, index: int, mark: str) -> TrackedProcess:
        """Return a process that begins now: a survivor, the standby worker, or a new one."""
        # Survivors first: they hold compiled programs and imports, and keep their devices.
        for waiting in (self._survivors, self._waiting):
            standby = waiting.pop(index, None)
            if standby is not None and standby.begin(start):
                return standby
            if standby is not None:
                # It is of no use to this attempt: the program changed, or it has ended.
                standby.close()
        return TrackedProcess(start, index, mark)

    def take_lasting(self, start: ProcessStart, index: int, mark: str) -> TrackedProcess:
        """Return a process that begins now, and that can leave."""
        if not start.can_wait or {index} & {*self._survivors, *self._waiting}:
            return self.take(start, index, mark)
        made = StandbyProcess(start, index, mark)
        made.begin(start)
        return made

    def close(self) -> None:
        """End all standby workers."""
        waiting = [*self._survivors.values(), *self._waiting.values()]
        self._survivors.clear()
        self._waiting.clear()
        # All are killed before any is waited for: each needs
        # some time to give memory of its devices back.
        for standby in waiting:
            standby.child.kill()
        for standby in waiting:
            standby.close()


# -- In the trainer --------------------------------------------------------------------------------
#
# A standby worker is a trainer started ahead, which imports what it needs and waits for its turn.
# Its environment is that of a trainer from the start, but for what changes with each attempt. A
# trainer that survived the loss of another one may leave its attempt, and is a standby worker
# again.


class StandbyControl:
    """When a trainer may begin an attempt: at once, and once, for any other process."""

    def __init__(
        self,
        heartbeat: Heartbeat | None,
        environment: MutableMapping[str, str] = os.environ,
    ) -> None:
        """Take the variable out of the environment.

        Args:
            heartbeat: Reports that the process is ready.
            environment: Gets the variables of each attempt.
        """
        # Removed: processes that a trainer starts, such as data workers, must not read this pipe.
        text = environment.pop(STANDBY_VARIABLE, "")
        self._pipe = int(text) if text else None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._heartbeat = heartbeat
        self._environment = environment

    @property
    def has_more(self) -> bool:
        """Whether there may be another turn."""
        return self._pipe is not None

    def wait(
        self, imports: Callable[[], None], on_leave: Callable[[], None] = lambda: None
    ) -> float | None:
        """Return when the first turn came, since the epoch; None at once for any other process.

        Args:
            imports: Imports what a trainer needs, and starts no devices.
            on_leave: Called on a thread when the process is to leave its attempt.
        """
        if self._pipe is None:
            return None
        read = (self._pipe, on_leave)
        # A daemon: it sits in a read that ends only when the supervisor does.
        threading.Thread(target=self._read, args=read, name="turns", daemon=True).start()
        # On a thread of its own, since a thread cannot raise its priority again: the main thread
        # must train at the normal one.
        with ThreadPoolExecutor(1, initializer=_lower_priority) as importing:
            # `result` raises here what an import raised; in a pool nobody would see it.
            importing.submit(imports).result()
        _report(self._heartbeat, READY)
        return self._next()

    def stand_down(self) -> float:
        """Say that this process has left its attempt; return when the next turn came."""
        _report(self._heartbeat, _STOOD_DOWN)
        return self._next()

    def _next(self) -> float:
        line = self._lines.get()
        if not line:
            # Without a supervisor nobody waits for this process's exit code; 0 keeps logs clean.
            sys.exit(0)  # the supervisor ended
        self._environment.update(parse_json(line))
        _report(self._heartbeat, "start")
        # Wall clock, since goodput adds times of several processes.
        return time.time()

    def _read(self, pipe: int, on_leave: Callable[[], None]) -> None:
        with open(pipe, encoding="utf-8") as lines:
            for line in lines:
                if line == _LEAVE:
                    on_leave()
                else:
                    self._lines.put(line)
        # The end of the pipe must wake `_next`, which would wait for ever.
        self._lines.put("")


def _lower_priority() -> None:
    """Take processor time that nobody else wants; Linux does so for the calling thread alone."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)


def _report(heartbeat: Heartbeat | None, phase: str) -> None:
    if heartbeat is not None:
        heartbeat.report(step=-1, phase=phase)
