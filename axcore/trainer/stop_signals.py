"""`StopSignals`: Ctrl-C and SIGTERM as a request that the loop looks at between steps.

A step is never broken in the middle, where its state is neither the old one nor the new one.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from axcore.distributed import all_gather_str, process_count

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Turns the first SIGINT or SIGTERM into `requested`; a second one acts as it always would.

    So a second Ctrl-C raises KeyboardInterrupt at once. Handlers are set in the main thread only,
    the one thread that may, and the former ones are put back at the end. A signal that the process
    ignores stays ignored.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def should_stop(self, step: int, *, every_steps: int) -> bool:
        """Returns whether the run stops here, the same in every process.

        One process stops when it is asked to. Several would wait for ever for one that stops alone:
        they compare at every `every_steps` steps whether anyone was asked.

        Args:
            step: Steps done.
            every_steps: Between steps at which the processes wait for the devices anyway.
        """
        if process_count() == 1:
            return self.requested is not None
        if step % every_steps:
            return False
        return any(all_gather_str("stopping together", "" if self.requested is None else "asked"))

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
