"""`StopSignals`: Ctrl-C and SIGTERM as a request that the loop looks at between steps.

A step is never broken in the middle, where its state is neither the old one nor the new one.
"""

import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from axcore.distributed import all_gather_str, process_count

TERMINATED = 128 + signal.SIGTERM
"""What a shell sees of a process that SIGTERM ended."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


AGREE_EVERY_S = 1.0
"""How often several processes ask one another, which costs them a millisecond."""

_MOST_STEPS = 100


class StopSignals:
    """Turns the first SIGINT or SIGTERM into `requested`; a second one acts as it always would.

    So a second Ctrl-C raises KeyboardInterrupt at once. Handlers are set in the main thread only,
    the one thread that may, and the former ones are put back at the end. A signal that the process
    ignores stays ignored.
    """

    def __init__(self, *, notice: str = "") -> None:
        """Listens to nothing yet.

        Args:
            notice: A file whose appearance asks the run to stop, too; "" for none. One that was
                there before does not.
        """
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._notice = Path(notice) if notice else None
        self._began = time.time()
        self._asked_last = (0, time.perf_counter())
        self._ask_next = 0

    def should_stop(self, step: int) -> bool:
        """Returns whether the run stops here, the same in every process.

        One process stops when it is asked to. Several would wait for ever for one that stops alone:
        they ask one another every second or so, at steps that all of them know.

        Args:
            step: Steps done.
        """
        if process_count() == 1:
            return self._is_asked()
        if self._asked_last[0] < step < self._ask_next:  # a run that went back asks at once
            return False
        answers = all_gather_str("stopping together", f"{self._is_asked():d} {self._pace(step)}")
        steps_per_s = float(answers[0].split()[1])
        self._ask_next = step + min(_MOST_STEPS, max(1, int(AGREE_EVERY_S * steps_per_s)))
        return any(answer.startswith("1") for answer in answers)

    def agreed(self) -> signal.Signals | None:
        """Returns which signal asked to stop, the same one in every process; None if none did.

        A notice counts as SIGTERM. Every process must call it.
        """
        own = self.requested or (signal.SIGTERM if self._is_noticed() else None)
        name = own.name if own else ""
        names = [name] if process_count() == 1 else all_gather_str("who asked to stop", name)
        asked = [one for one in names if one]
        return signal.Signals[asked[0]] if asked else None

    def _is_asked(self) -> bool:
        return self.requested is not None or self._is_noticed()

    def _is_noticed(self) -> bool:
        if self._notice is None:
            return False
        try:
            return self._notice.stat().st_mtime >= self._began
        except OSError:
            return False

    def _pace(self, step: int) -> float:
        """Returns the steps a second since this was last asked."""
        before, since = self._asked_last
        self._asked_last = step, time.perf_counter()
        return (step - before) / max(1e-9, self._asked_last[1] - since)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested = signal.Signals(number)
            return
        self.__exit__(None, None, None)
        signal.raise_signal(number)
