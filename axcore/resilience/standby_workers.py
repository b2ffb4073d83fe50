"""`Spares`: for each process of a run one that waits to take its place."""

import collections
import contextlib
import json
import math
import os
import queue
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import attrs

from axcore.config.json_files import parse_json
from axcore.launch.children import Child, ProcessStart
from axcore.launch.local import mark_of
from axcore.resilience.heartbeat import STACKS_SIGNAL, SUPERVISOR_VARIABLE, Beat, Heartbeat

SPARE_VARIABLE = "AXCORE_SPARE"
READY = "spare"
"""The phase of a spare that has nothing left to import."""


STOOD_DOWN = "stood_down"
"""The phase of a trainer that has left its attempt and waits for the next one."""


LEAVE = "leave\n"
"""The line by which a supervisor asks a trainer to leave."""

_LOWEST_PRIORITY = 19


_READ_BYTES = 1 << 16
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
        was_ready: Whether it was a spare, with nothing left to import when its turn came.
    """

    was_ready = False

    def __init__(
        self, start: ProcessStart, index: int, mark: str, pass_fds: Sequence[int] = ()
    ) -> None:
        """Starts the process, with the pipe and the file that its heartbeat takes."""
        self.pipe, beats = os.pipe()
        os.set_blocking(self.pipe, False)
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - until close
        descriptors = (beats, self._stacks.fileno())
        variable = ",".join(map(str, (os.getpid(), *descriptors)))
        environment = {**start.environment, SUPERVISOR_VARIABLE: variable}
        started = ProcessStart(command=start.command, environment=environment)
        self.index = index
        self.child = Child(started, index, mark, (*descriptors, *pass_fds))
        os.close(beats)
        self.beat = Beat()
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
        return process_state(self.child.pid) in ("T", "t")

    @property
    def has_stood_down(self) -> bool:
        """Whether the process has left its attempt, and waits for the next one."""
        return self.beat.phase == STOOD_DOWN

    def read_beats(self) -> bool:
        """Takes in what the process has reported; returns whether it can report more."""
        try:
            data = os.read(self.pipe, _READ_BYTES)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + data).split(b"\n")
        if lines:
            self.beat_at = time.monotonic()
        for line in lines:
            self._take(Beat.read(line))
        return bool(data)

    def _take(self, beat: Beat) -> None:
        if beat == self.beat:
            return
        self.progress_at = self.beat_at
        if beat.step > self.beat.step >= 0:
            steps = beat.step - self.beat.step
            self._step_times.append((self.beat_at - self._step_at) / steps)
        if beat.step != self.beat.step:
            self._step_at = self.beat_at
        self.beat, self.last_step = beat, max(self.last_step, beat.step)
        if self.first_step < 0:
            self.first_step = beat.step

    def ask_for_stacks(self) -> None:
        """Asks the process for its stacks; one that is stopped is woken to answer."""
        self.child.send(STACKS_SIGNAL)
        if self.is_stopped:
            self.child.send(signal.SIGCONT)

    def stacks(self) -> str:
        """Returns the stacks that the process wrote so far."""
        size = os.fstat(self._stacks.fileno()).st_size
        return os.pread(self._stacks.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        """Ends the process and gives its descriptors back."""
        self.child.end()
        self.read_beats()
        os.close(self.pipe)
        self._stacks.close()


class SpareProcess(TrackedProcess):
    """A process that waits for its turn, the first one or another."""

    def __init__(self, start: ProcessStart, index: int, mark: str) -> None:
        """Starts the process, with a pipe for what changes until its turn."""
        turn, self._turn = os.pipe()
        environment = {**start.environment, SPARE_VARIABLE: str(turn)}
        super().__init__(attrs.evolve(start, environment=environment), index, mark, (turn,))
        self._given = start
        self._waits = False
        os.close(turn)

    def begin(self, start: ProcessStart) -> bool:
        """Lets the process begin; returns whether it lives to do so."""
        if not self.read_beats() or start.command != self._given.command:
            return False
        self._waits = self.was_ready = self.beat.phase in (READY, STOOD_DOWN)
        self.progress_at = self._step_at = time.monotonic()
        self.beat, self.first_step, self.last_step = Beat(), -1, -1
        before = self._given.environment
        self._given = start
        new = {name: v for name, v in start.environment.items() if before.get(name) != v}
        self._write(json.dumps(new) + "\n")
        return self.child.exit_code() is None

    def _take(self, beat: Beat) -> None:
        """Passes over beats from before its turn, which it sends until it knows of it."""
        self._waits = self._waits and beat.phase in (READY, STOOD_DOWN)
        if not self._waits:
            super()._take(beat)

    def ask_to_leave(self) -> None:
        """Asks the process to leave, if it has not yet."""
        self._write(LEAVE)

    def _write(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # its end shows in its exit code
            os.write(self._turn, line.encode())

    def close(self) -> None:
        """Ends the process and gives its descriptors back."""
        super().close()
        os.close(self._turn)


def process_state(pid: int) -> str:
    """Returns the kernel's letter for what a process does: R, S, D, T, ...; "" where unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class Spares:
    """Keeps spares while a run makes steps, and gives them to the next attempt."""

    def __init__(self) -> None:
        self._waiting: dict[int, SpareProcess] = {}
        self._survivors: dict[int, SpareProcess] = {}

    def prepare(self, starts: Sequence[ProcessStart]) -> None:
        """Starts a spare for each process whose program can wait, where there is none."""
        for index, start in enumerate(starts):
            if start.can_wait and index not in self._waiting:
                self._waiting[index] = SpareProcess(start, index, mark_of(index, len(starts)))

    def keep(self, survivors: Iterable[SpareProcess]) -> None:
        """Takes processes that have left theirs; each takes its own place in the next attempt."""
        self._survivors.update({one.index: one for one in survivors})

    def take(self, start: ProcessStart, index: int, mark: str) -> TrackedProcess:
        """Returns a process that begins now: a survivor, the spare, or a new one."""
        for waiting in (self._survivors, self._waiting):
            spare = waiting.pop(index, None)
            if spare is not None and spare.begin(start):
                return spare
            if spare is not None:
                spare.close()
        return TrackedProcess(start, index, mark)

    def take_lasting(self, start: ProcessStart, index: int, mark: str) -> TrackedProcess:
        """Returns a process that begins now, and that can leave."""
        if not start.can_wait or {index} & {*self._survivors, *self._waiting}:
            return self.take(start, index, mark)
        made = SpareProcess(start, index, mark)
        made.begin(start)
        return made

    def close(self) -> None:
        """Ends all spares."""
        waiting = [*self._survivors.values(), *self._waiting.values()]
        self._survivors.clear()
        self._waiting.clear()
        for spare in waiting:
            spare.child.kill()
        for spare in waiting:
            spare.close()


class Turns:
    """When a process may begin; at once, and once only, where it is no spare."""

    def __init__(
        self,
        heartbeat: Heartbeat | None,
        environment: MutableMapping[str, str] = os.environ,
    ) -> None:
        """Takes the variable out of the environment.

        Args:
            heartbeat: Reports that the process is ready.
            environment: Gets the variables of each attempt.
        """
        text = environment.pop(SPARE_VARIABLE, "")
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
        """Returns when the first turn came, since the epoch; None at once where this is no spare.

        Args:
            imports: Imports what a trainer needs, and starts no devices.
            on_leave: Called on a thread when the process is to leave its attempt.
        """
        if self._pipe is None:
            return None
        read = (self._pipe, on_leave)
        threading.Thread(target=self._read, args=read, name="turns", daemon=True).start()
        with ThreadPoolExecutor(1, initializer=_lower_priority) as importing:
            importing.submit(imports).result()
        _report(self._heartbeat, READY)
        return self._next()

    def stand_down(self) -> float:
        """Says that this process has left its attempt; returns when the next turn came."""
        _report(self._heartbeat, STOOD_DOWN)
        return self._next()

    def _next(self) -> float:
        line = self._lines.get()
        if not line:
            sys.exit(0)  # the supervisor ended
        self._environment.update(parse_json(line))
        _report(self._heartbeat, "start")
        return time.time()

    def _read(self, pipe: int, on_leave: Callable[[], None]) -> None:
        with open(pipe, encoding="utf-8") as lines:
            for line in lines:
                if line == LEAVE:
                    on_leave()
                else:
                    self._lines.put(line)
        self._lines.put("")


def _lower_priority() -> None:
    """Takes processor time that nobody else wants; Linux does so for the calling thread alone."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)


def _report(heartbeat: Heartbeat | None, phase: str) -> None:
    if heartbeat is not None:
        heartbeat.report(step=-1, phase=phase)
