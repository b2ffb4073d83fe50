"""Ctrl-C where nothing is to be saved: one clear line, and exit code 130."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 130
SAID = (
    "stopped by Ctrl-C; the same command starts again, from the newest checkpoint if there is one"
)


@contextlib.contextmanager
def exits_on_interrupt(said: Callable[[], str] = lambda: SAID) -> Iterator[None]:
    """Let Ctrl-C end the process at once, unless somebody handles it.

    KeyboardInterrupt would come up wherever Python is, and a compiler that it interrupts in the
    middle may crash. Only the main thread may set this.

    Args:
        said: Returns what is said.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), f"\n{said()}\n".encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
