"""`StopSignals`: Ctrl-C, SIGTERM and SIGHUP as a request that the loop looks at between steps.

A step is never broken in the middle, where its state is neither the old one nor the new one.
"""

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from axcore.distributed import decide_together, process_count

TERMINATED = 128 + signal.SIGTERM
"""What a shell sees of a process that SIGTERM ended."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Shorter would end a process that is merely in a long step;
# longer is more than people wait after a second Ctrl-C.
WAITING_S = 5.0
"""How long a thread that waits for devices or other processes may not see a signal."""


_REPEATED_S = 1.0
"""Within which two SIGTERMs are one request: an engine may signal a process and its agent, which
passes it on."""

AGREE_EVERY_S = 1.0
"""How often several processes ask one another, which costs them a millisecond."""

_PROCESSES_A_SECOND = 1024
"""How many processes ask each second; more ask less often, as one of them answers all."""

# However short steps are: the estimate of their pace may be far off after a pause.
_MAX_STEPS_BETWEEN = 100


def _stop_or_go_on(said: list[Any]) -> tuple[bool, int]:
    """Return whether any process was asked to stop, and in how many steps to ask again."""
    steps_per_s = min(pace for _, pace in said)
    every_s = AGREE_EVERY_S * max(1.0, len(said) / _PROCESSES_A_SECOND)
    steps = min(_MAX_STEPS_BETWEEN, max(1, int(every_s * steps_per_s)))
    return any(is_asked for is_asked, _ in said), steps


def _first_named(names: list[str]) -> str:
    """Return the first name that is not empty."""
    return next(filter(None, names), "")


class _Repeated:
    """Which SIGTERMs are the same request as one before, which came another way."""

    def __init__(self) -> None:
        self._first_at = -math.inf

    def is_repeated(self, number: int) -> bool:
        """Whether a signal that comes now is one of those."""
        if number != signal.SIGTERM:
            return False
        now = time.monotonic()
        is_repeated = now - self._first_at < _REPEATED_S
        if not is_repeated:
            self._first_at = now
        return is_repeated


class StopSignals:
    """Turns the first signal into `requested`; a second one acts as it always would.

    So a second Ctrl-C raises KeyboardInterrupt at once. SIGHUP counts as SIGTERM, and never as the
    second one: a terminal that closes may send it twice. Nor does a SIGTERM within a second of the
    first: an engine may signal a process and its agent, which passes it on. Handlers are set in the
    main thread only, the one thread that may, and the former ones are put back at the end. A signal
    that the process ignores stays ignored, which is what `nohup` relies on.

    Python runs a handler when the main thread comes back to it, which a step that waits for a
    process that never comes does not let it. So a thread sees each signal as well: some seconds
    after a second one that nobody has handled it ends the process, and after the first one where
    the run continues and `may_end` says that nothing would be lost.
    """

    def __init__(self, *, notice: str = "", may_end: Callable[[], bool] = lambda: False) -> None:
        """Listen to nothing yet.

        Args:
            notice: A file whose appearance asks the run to stop, too; "" for none. One that was
                there before does not.
            may_end: Whether the process has made nothing yet that is to be saved.
        """
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._notice = Path(notice) if notice else None
        self._began = time.time()
        # Not the epoch: `_pace` needs an interval.
        self._asked_last = (0, time.perf_counter())
        self._ask_next = 0
        self._may_end = may_end
        self._num_handled = 0
        self._handled = _Repeated()
        self._pipe: tuple[int, int] | None = None
        self._wakeup_before = -1

    def should_stop(self, step: int) -> bool:
        """Return whether the run stops here, the same in every process.

        One process stops when it is asked to. Several would wait for ever for one that stops alone:
        they ask one another every second or so, at steps that all of them know.

        Args:
            step: Steps done.
        """
        if process_count() == 1:
            return self._is_asked()
        # All get the same answer, so all ask at the same steps.
        if self._asked_last[0] < step < self._ask_next:  # a run that went back asks at once
            return False
        own = (self._is_asked(), self._pace(step))
        stops, steps = decide_together("stopping together", lambda: own, _stop_or_go_on)
        self._ask_next = step + steps
        return bool(stops)

    def agreed(self) -> signal.Signals | None:
        """Return which signal asked to stop, the same one in every process; None if none did.

        A notice counts as SIGTERM. Every process must call it.
        """
        own = self.requested or (signal.SIGTERM if self._is_noticed() else None)
        name = own.name if own else ""
        asked = decide_together("who asked to stop", lambda: name, _first_named)
        return signal.Signals[asked] if asked else None

    def _is_asked(self) -> bool:
        return self.requested is not None or self._is_noticed()

    def _is_noticed(self) -> bool:
        if self._notice is None:
            return False
        try:
            # By its time: some machines find an old notice from before they were started.
            return self._notice.stat().st_mtime >= self._began
        except OSError:
            return False

    def _pace(self, step: int) -> float:
        """Return the steps a second since this was last asked."""
        before, since = self._asked_last
        self._asked_last = step, time.perf_counter()
        return (step - before) / max(1e-9, self._asked_last[1] - since)

    def __enter__(self) -> Self:
        # `signal.signal` raises in any other thread; a trainer in a notebook's thread runs without.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # None is a handler that C installed, and cannot be put
                # back; an ignored signal is one that `nohup` asked for.
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._request)
            # Not blocking for the writer, since a signal
            # handler must never wait; the reader is set back.
            self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            os.set_blocking(self._pipe[0], True)
            # Python writes each signal's number here from C, before any handler of Python
            # runs, so a main thread that is stuck in a collective does not matter.
            self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(self._pipe[0],), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            # First the handlers, then the pipe: a signal in
            # between must not be written to a closed descriptor.
            signal.signal(number, handler)
        self._before.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            os.close(self._pipe[1])  # which ends the thread that reads
            self._pipe = None

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._handled.is_repeated(number):
            return
        self._num_handled += 1
        if self.requested is None:
            is_hangup = number == signal.SIGHUP
            self.requested = signal.SIGTERM if is_hangup else signal.Signals(number)
        elif number != signal.SIGHUP:
            # Put back, then raised again: the second signal
            # does what it would have done without this class.
            self.__exit__(None, None, None)
            signal.raise_signal(number)

    def _watch(self, pipe: int) -> None:
        """End the process where a signal finds its main thread in a wait, see the class."""
        # Apart from the handler's, which may run much later than signals come.
        seen = _Repeated()
        num_seen, number, deadline = 0, 0, None
        with open(pipe, "rb", buffering=0) as numbers:
            while True:
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                if select.select([numbers], [], [], left_s)[0]:
                    received = numbers.read(1)
                    if not received:
                        return
                    # The wakeup pipe carries every signal of the process, such as SIGCHLD.
                    if received[0] in _SIGNALS:
                        number = received[0]
                        num_seen += not seen.is_repeated(number)
                        deadline = time.monotonic() + WAITING_S
                    continue
                # Python handles several of a kind once: then a second one counts as unseen.
                num_unseen = num_seen - self._num_handled
                is_second = num_unseen > 1 or (num_unseen == 1 and self.requested is not None)
                if self._may_end() or (is_second and number != signal.SIGHUP):
                    self._end(number)
                deadline = None

    def _end(self, number: int) -> None:
        name = signal.Signals(number).name
        message = f"\n{name} ends the run while it waits for devices or other processes: "
        message += "what it did since the newest checkpoint is not saved\n"
        # `write`, not `print`: the main thread may hold the lock of stderr's buffer.
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, message.encode())
        # `sys.exit` in this thread would end only the thread.
        os._exit(128 + number)
