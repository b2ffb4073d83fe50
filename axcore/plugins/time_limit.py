"""`CallThread` and `within`: calls under a time limit; one that hangs is left, and its place named.

The calls run in a thread of their own, so that this works in any thread and without signals, and
what hangs can be left: the thread ends with the process. Only code that never releases the
interpreter's lock, as a search for a hopeless regular expression does, cannot be left.
"""

import contextvars
import math
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeVar

from axcore.errors import PluginError

T = TypeVar("T")

CALLBACK_TIMEOUT = "AXCORE_CALLBACK_TIMEOUT_S"
"""The environment variable for how long one call of an observer or a metric writer may take."""

DEFAULT_CALLBACK_TIMEOUT_S = 300.0
"""Longer than libraries try again to reach a server that restarts; shorter than the 600 s after
which the other processes of a run give up waiting for this one."""


class TakesTooLongError(Exception):
    """A call did not end in time; the text is where it is."""


def seconds_of(environment: Mapping[str, str], variable: str, default: float) -> float:
    """Return the time limit that an environment variable gives.

    Raises:
        PluginError: It is not a number above 0.
    """
    text = environment.get(variable) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise PluginError(
            f"{variable} is {text!r}; expected a number of seconds above 0",
            where=f"environment variable {variable}",
            hint=f"{variable}={6 * default:g}",
        )
    return seconds


def callback_timeout_s(environment: Mapping[str, str] = os.environ) -> float:
    """Return how long a run waits for one call of an observer or a metric writer.

    Raises:
        PluginError: `AXCORE_CALLBACK_TIMEOUT_S` is not a number above 0.
    """
    return seconds_of(environment, CALLBACK_TIMEOUT, DEFAULT_CALLBACK_TIMEOUT_S)


def longer(limit_s: float) -> str:
    """Return what to type so that callbacks may take longer than they may now."""
    return f"set {CALLBACK_TIMEOUT}={6 * limit_s:g} where it needs that long"


class CallThread:
    """A thread that makes calls one after another, for a thread that waits for each.

    Libraries that want all calls from one thread get that. After a call that hung, there is no
    other: its thread is busy.

    Args:
        package: Whose code is shown as the place where a call hangs.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_make_calls, args=(self._calls,), name=f"calls of {package}", daemon=True
        )
        self._thread.start()
        self.end = weakref.finalize(self, self._calls.put, None)
        self.end.atexit = False

    def within(self, limit_s: float, call: Callable[[], T]) -> T:
        """Return what `call` returns, or raise what it raises.

        Raises:
            TakesTooLongError: The time is over.
        """
        answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._calls.put((contextvars.copy_context(), call, answer))
        try:
            result, error = answer.get(timeout=limit_s)
        except queue.Empty:
            raise TakesTooLongError(_place(self._thread, self._package)) from None
        if error is not None:
            raise error
        returned: T = result
        return returned


def within(limit_s: float, call: Callable[[], T], *, package: str) -> T:
    """Return what one call returns, or raise what it raises; see `CallThread`.

    Raises:
        TakesTooLongError: The time is over.
    """
    thread = CallThread(package)
    try:
        return thread.within(limit_s, call)
    finally:
        thread.end()


def _make_calls(calls: queue.SimpleQueue[Any]) -> None:
    while (asked := calls.get()) is not None:
        context, call, answer = asked
        try:
            answer.put((context.run(call), None))
        except BaseException as error:  # raised again in the thread that waits
            answer.put((None, error))
        del asked, context, call, answer  # which hold what the next call may want freed


def _place(thread: threading.Thread, package: str) -> str:
    """Return `file:line` of the innermost code of a package that a thread runs, or of any."""
    innermost = frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).split(".")[0] == package:
            return _shown(frame)
        frame = frame.f_back
    return _shown(innermost) if innermost is not None else "its end"


def _shown(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
