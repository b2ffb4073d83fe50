"""Starting JAX's devices, without the complaints of software for hardware that is not there.

Libraries for accelerators write to the standard error, below Python, that they find none. Where no
plugin sees its hardware in this machine that is one line, and `axcore doctor` shows it whole.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from axcore._jax_compat import devices_have_started
from axcore.registration.ref import Ref

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
    """Returns JAX's devices, which it starts where nobody has.

    Args:
        is_present: Whether an accelerator is known to be in this machine; then what its libraries
            write is written as it comes.
        unused: Gets what they wrote where none is, and JAX found none.
    """
    find: Callable[[], Sequence[Any]] = _JAX_DEVICES.resolve()
    if is_present or devices_have_started():
        return find()
    found: Sequence[Any] = ()
    with _held_standard_error() as held:
        try:
            found = find()
        finally:
            said = held()
            is_unused = bool(found) and all(one.platform == "cpu" for one in found)
            if not is_unused:
                os.write(_STANDARD_ERROR, said)
    if is_unused and said.strip():
        unused(said.decode(errors="replace"))
    return found


@contextmanager
def _held_standard_error() -> Iterator[Callable[[], bytes]]:
    """Keeps what is written to the standard error, until what it yields is called for it."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        own = os.dup(_STANDARD_ERROR)
        os.dup2(file.fileno(), _STANDARD_ERROR)
        try:
            yield lambda: _given_back(own, file)
        finally:
            os.close(own)


def _given_back(own: int, file: IO[bytes]) -> bytes:
    sys.stderr.flush()
    os.dup2(own, _STANDARD_ERROR)
    file.seek(0)
    return file.read()
