"""`within`: a call under a time limit; one that hangs is left behind, and named with where it is.

The call runs in a thread of its own, so that this works in any thread and without signals, and what
hangs can be left: the thread ends with the process. Only code that never releases the interpreter's
lock, as a search for a hopeless regular expression does, cannot be left.
"""

import contextvars
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class TakesTooLongError(Exception):
    """A call did not end in time; the text is where it is."""


def within(limit_s: float, call: Callable[[], T], *, package: str) -> T:
    """Returns what `call` returns, or raises what it raises.

    Args:
        limit_s: How long to wait.
        call: Takes no arguments.
        package: Whose code is shown as the place where the call hangs.

    Raises:
        TakesTooLongError: The time is over.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(context.run(call))
        except BaseException as error:  # raised again in the thread that waits
            errors.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=work, name=f"loading {package}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TakesTooLongError(_place(thread, package))
    return results[0]


def _place(thread: threading.Thread, package: str) -> str:
    """Returns `file:line` of the innermost code of a package that a thread runs, or of any."""
    innermost = frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).split(".")[0] == package:
            return _shown(frame)
        frame = frame.f_back
    return _shown(innermost) if innermost is not None else "its end"


def _shown(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
