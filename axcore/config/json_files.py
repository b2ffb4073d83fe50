"""JSON that others wrote, read strictly: no key twice, no number that a float cannot hold.

Where Git LFS left a pointer in the place of a file, that is said by name.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from axcore.errors import AxcoreError

BYTE_ORDER_MARK = "\ufeff"
"""Some editors write it in front of a text in UTF-8; it is not a part of the text."""

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
        content = parse_json(file.read_bytes())
    except OSError as cause:
        what = f"The {kind} {str(path)!r} cannot be read: {cause.strerror}."
        raise error(what, where=str(file.absolute())) from cause
    except ValueError as cause:
        what = f"The {kind} {str(path)!r} is not JSON: {cause}."
        raise error(what, where=str(file.absolute())) from cause
    if not isinstance(content, dict):
        raise error(f"The {kind} {str(path)!r} is no JSON object.", where=str(file.absolute()))
    return content


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, in UTF-8 where it is bytes; a byte order mark is skipped.

    Raises:
        ValueError: It is not JSON or not UTF-8, an object has a key twice, a number is too large or
            too small for a float, or the nesting is too deep. `json` itself takes the last of two
            keys, and 0 or infinity for such a number.
    """
    decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        return json.loads(
            decoded.removeprefix(BYTE_ORDER_MARK),
            object_pairs_hook=_without_doubles,
            parse_float=exact_float,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def exact_float(text: str) -> float:
    """Return the float that a decimal number is nearest to.

    Raises:
        ValueError: That is infinity, or is 0 and the number is not.
    """
    value = float(text)
    if value == 0.0 and any(digit in "123456789" for digit in text.lower().partition("e")[0]):
        raise ValueError(f"{text} is too small for a float, which would make it 0")
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError(f"{text} is too large for a float, whose largest is 1.8e308")
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError(
            f"the key {first_double(key for key, _ in pairs)!r} is twice in one mapping"
        )
    return data


def first_double(keys: Iterable[Any]) -> Any:
    """Return the first of some keys that was there before, or None."""
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


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
