"""A disk that is full or slow, for this process: what Python opens for writing, makes or renames.

An audit hook of Python refuses each such call, or lets it wait, below the paths of a run. What
libraries in other languages write is not touched, but what they write into is: a checkpoint's
folder is made, and its files are made durable, by Python.
"""

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NAMED_FIRST = {"open": 0, "os.mkdir": 0, "os.rename": 1}
"""The argument that is the path, by event; of a rename it is the new one."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _Disk:
    """What happens to a path until a time; nothing at first."""

    def __init__(self) -> None:
        self.until = 0.0
        self.strike: Callable[[str], None] = lambda path: None
        self.roots: tuple[str, ...] = ()
        self.is_hooked = False

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _NAMED_FIRST or time.monotonic() > self.until:
            return
        if event == "open" and not arguments[2] & _WRITING:
            return
        path = os.fspath(arguments[_NAMED_FIRST[event]])
        if isinstance(path, str) and os.path.abspath(path).startswith(self.roots):
            self.strike(path)


_disk = _Disk()


def strike_below(*roots: Path | str) -> None:
    """Says which folders a fault strikes."""
    _disk.roots = tuple(os.path.abspath(root) + os.sep for root in roots)


def refuse_files(seconds: float) -> None:
    """Lets every such call raise "No space left on device" for some seconds."""

    def strike(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    _begin(strike, seconds)


def slow_files(seconds: float, wait_s: float) -> None:
    """Lets every such call wait, for some seconds."""
    _begin(lambda path: time.sleep(wait_s), seconds)


def _begin(strike: Callable[[str], None], seconds: float) -> None:
    _disk.strike, _disk.until = strike, time.monotonic() + seconds
    if not _disk.is_hooked:  # a hook stays for the life of the process
        sys.addaudithook(_disk.hook)
        _disk.is_hooked = True
