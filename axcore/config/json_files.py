"""`read_json`: objects of JSON in files that others wrote; and whether Git LFS fetched a file."""

import json
from pathlib import Path
from typing import Any

from axcore.errors import AxcoreError

_POINTER = b"version https://git-lfs.github.com/spec/"
"""What a file begins with that Git LFS leaves in the place of one that it has not fetched.

Source: github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""


def read_json(path: Path | str, kind: str, *, error: type[AxcoreError]) -> dict[str, Any]:
    """Returns a file's JSON object.

    Args:
        path: The file.
        kind: What it is, for errors.
        error: Raised where the file does not exist, or holds something else.
    """
    file = Path(path).expanduser()
    try:
        check_is_fetched(file, error=error)
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as cause:
        what = f"The {kind} {str(path)!r} cannot be read: {cause.strerror}."
        raise error(what, where=str(file.absolute())) from cause
    except ValueError as cause:
        what = f"The {kind} {str(path)!r} is not JSON: {cause}."
        raise error(what, where=str(file.absolute())) from cause
    if not isinstance(content, dict):
        raise error(f"The {kind} {str(path)!r} is no JSON object.", where=str(file.absolute()))
    return content


def check_is_fetched(file: Path, *, error: type[AxcoreError]) -> None:
    """Checks that a file is itself, and no pointer of Git LFS to it.

    Args:
        file: The file.
        error: Raised where it is a pointer.

    Raises:
        OSError: The file cannot be read.
    """
    if not is_fetched(file):
        raise error(
            f"{file.name} is a pointer of Git LFS, and not the file itself",
            where=str(file.absolute()),
            hint=f"fetch it: git -C {file.absolute().parent} lfs pull",
        )


def is_fetched(file: Path) -> bool:
    """Whether a file is itself, and no pointer of Git LFS to it."""
    with file.open("rb") as opened:
        return opened.read(len(_POINTER)) != _POINTER
