"""Handing a job to an engine by the engine's own program."""

import shutil
import subprocess
from collections.abc import Sequence

from axcore.errors import ProcessError


def submit(command: Sequence[str], text: str) -> int:
    """Runs a program with some text as its input; what it prints goes where ours goes.

    Returns:
        Its exit code, 0.

    Raises:
        ProcessError: The program is not here, or refused the text.
    """
    if shutil.which(command[0]) is None:
        raise ProcessError(
            f"there is no {command[0]!r} on this machine",
            where="--submit",
            hint=f"install it, or leave --submit out and give what is printed to {command[0]} "
            "where it is",
        )
    done = subprocess.run(list(command), input=text, text=True, check=False)
    if done.returncode:
        raise ProcessError(
            f"{' '.join(command)} ended with {done.returncode}",
            where="--submit",
            hint="see what it says above; leave --submit out to see what it was given",
        )
    return done.returncode
