"""Starting JAX's devices, without the complaints of software for hardware that is not there.

Libraries for accelerators write to the standard error, below Python, that they find none. Where no
plugin sees its hardware in this machine that is one line, and `axcore doctor` shows it whole.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from axcore._jax_compat import devices_have_started
from axcore.registration import Ref

_JAX_DEVICES = Ref("jax:devices")
"""A reference, so that this package imports no jax until devices are asked for."""

_STANDARD_ERROR = 2
_NOTE = (
    "note: software for accelerators is installed and found none; JAX runs on CPU. "
    "`axcore doctor` shows what it said; with JAX_PLATFORMS=cpu this line is left out"
)


def _say_in_one_line(_: str) -> None:
    if os.environ.get("JAX_PLATFORMS") != "cpu":
        print(_NOTE, file=sys.stderr)


def start_devices(
    *, is_present: bool, unused: Callable[[str], None] = _say_in_one_line
) -> Sequence[Any]:
    """Return JAX's devices, which it starts where nobody has.

    Args:
        is_present: Whether an accelerator is known to be in this machine; then what its libraries
            write is written as it comes.
        unused: Gets what they wrote where none is, and JAX found none.
    """
    find: Callable[[], Sequence[Any]] = _JAX_DEVICES.resolve()
    if is_present or devices_have_started():
        return find()
    held = _Held()
    try:
        with held:
            found = find()
    except BaseException:
        os.write(_STANDARD_ERROR, held.said)
        raise
    if any(one.platform != "cpu" for one in found):
        os.write(_STANDARD_ERROR, held.said)
    elif held.said.strip():
        unused(held.said.decode(errors="replace"))
    return found


class _Held:
    """A context that keeps what libraries write below Python, or log where nobody listens.

    What Python itself writes is written at once: a process may be ended within this, and says so.

    Attributes:
        said: What was kept, when it is over.
    """

    said = b""

    def __enter__(self) -> None:
        sys.stderr.flush()
        self._file = tempfile.TemporaryFile()
        self._own = os.dup(_STANDARD_ERROR)
        os.dup2(self._file.fileno(), _STANDARD_ERROR)
        self._replaced = (logging.lastResort, sys.stderr)
        logging.lastResort = logging.StreamHandler(_text(_STANDARD_ERROR))
        if sys.stderr is sys.__stderr__:
            sys.stderr = _text(self._own)

    def __exit__(self, *_: object) -> None:
        logging.lastResort, sys.stderr = self._replaced
        os.dup2(self._own, _STANDARD_ERROR)
        os.close(self._own)
        with self._file as file:
            file.seek(0)
            self.said = file.read()


def _text(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
