"""What every command shows of long work: one line that changes on a terminal, plain ones elsewhere.

Work that is over within two seconds shows nothing.
"""

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from axcore.progress import Work

_SHOWN_AFTER_S = 2.0
_EVERY_S = {True: 0.5, False: 10.0}
"""Seconds between two looks at the work, on a terminal and elsewhere."""

_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


class WorkLines:
    """Shows work; a listener of `heard_by`, and a context manager.

    Args:
        shown_after_s: How long work takes at least that is shown.
        stream: Where it is shown; stderr where None.
    """

    def __init__(self, shown_after_s: float = _SHOWN_AFTER_S, stream: TextIO | None = None) -> None:
        self._after_s = shown_after_s
        self._stream = stream or sys.stderr
        self._began: list[tuple[Work, float]] = []
        self._shown: set[int] = set()
        self._lock = threading.Lock()
        self._wakes = threading.Condition(self._lock)
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def __call__(self, work: Work) -> None:
        """Hear of work."""
        with self._lock:
            if work.is_over:
                self._end(work)
            elif not any(one is work for one, _ in self._began):
                self._began.append((work, time.monotonic()))
                self._start_watching()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_closed = True
            self._wakes.notify()
        if self._thread is not None:
            self._thread.join()

    def _start_watching(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="work-lines", daemon=True)
            self._thread.start()
        self._wakes.notify()

    def _watch(self) -> None:
        with self._lock:
            while not self._is_closed:
                self._wakes.wait(self._show())

    def _show(self) -> float | None:
        """Show the innermost work; returns the seconds until it is looked at again."""
        if not self._began:
            return None
        work, began = self._began[-1]
        took = time.monotonic() - began
        if took < self._after_s:
            return self._after_s - took
        self._shown.add(id(work))
        self._print(f"{work_text(work)}, {took:.0f} s", is_last=False)
        return _EVERY_S[self._stream.isatty()]

    def _end(self, work: Work) -> None:
        began = next((began for one, began in self._began if one is work), None)
        if began is None:
            return
        self._began = [(one, at) for one, at in self._began if one is not work]
        if id(work) in self._shown:
            self._shown.discard(id(work))
            took = time.monotonic() - began
            how = "failed after" if work.has_failed else "in"
            self._print(f"{work.name}: {_size(work.total)} {how} {took:.1f} s", is_last=True)

    def _print(self, text: str, *, is_last: bool) -> None:
        if self._stream.isatty():
            print(f"\r\x1b[K{text}", end="\n" if is_last else "", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)


def work_text(work: Work) -> str:
    """Return what is done and how far it is, as "reading weights: 1.2 GB of 3.0 GB"."""
    part = f"{_size(work.done)} of " if work.done else ""
    return f"{work.name}: {part}{_size(work.total)}"


def _size(num_bytes: int) -> str:
    """Return a number of bytes with a decimal unit, as disks and downloads have them."""
    for unit, size in _UNITS:
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
