"""Runs the program beside it with limits; `axcore.evaluation.sandbox` starts it, nothing else.

It is a file of its own that imports nothing of axcore: it runs isolated, in a moment.
"""

import ctypes
import json
import os
import resource
import runpy
import sys
from collections.abc import Mapping
from typing import Any

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_REFUSED = ("socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.kill", "ctypes.")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod")


def _limit(limits: Mapping[str, int]) -> None:
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NET)  # where it is refused, the hook still refuses


def _refuse_all_else(folder: str) -> None:
    def inside(path: Any) -> bool:
        if isinstance(path, int):
            return True
        return os.path.realpath(os.fsdecode(path)).startswith(folder + os.sep)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"a program that is evaluated may not: {event}")
        is_write = event == "open" and bool((arguments[2] or 0) & _WRITES)
        if (is_write or event in _CHANGES) and not inside(arguments[0]):
            raise PermissionError(f"a program that is evaluated may not change {arguments[0]!r}")

    sys.addaudithook(check)


def _main() -> None:
    said = json.loads(sys.stdin.readline())
    folder = os.path.realpath(os.getcwd())
    _limit(said["limits"])
    _refuse_all_else(folder)
    runpy.run_path(os.path.join(folder, "program.py"), run_name="__main__")
    os.write(1, f"\n{said['token']}\n".encode())


if __name__ == "__main__":
    _main()
