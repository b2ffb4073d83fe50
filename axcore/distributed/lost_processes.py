"""A process that is lost in a step, of which the others see a broken connection."""

import contextlib
from collections.abc import Iterator

import jax

from axcore.distributed.processes import process_count
from axcore.errors import ProcessError

_SIGNS = ("Connection reset by peer", "Connection closed by peer", "Broken pipe")
"""How the error of a collective ends where a peer has left."""


@contextlib.contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Makes the error of a collective that lost a peer one that says so.

    Raises:
        ProcessError: Another process of the run was lost.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if process_count() == 1 or not any(sign in str(error) for sign in _SIGNS):
            raise
        raise ProcessError(
            f"another process of the run was lost in a step: {str(error).splitlines()[0]}",
            where="a collective",
            hint="see what the other processes say, and start the run again; it resumes",
        ) from error
