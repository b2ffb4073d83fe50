"""JSON that others wrote, read strictly and with limits: the one reader of JSON.

No key twice, no number that a float cannot hold, no deep nesting, no endless file; the time that a
text takes grows with its length alone. Where Git LFS left a pointer in the place of a file, that is
said by name.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from axcore.errors import AxcoreError, ConfigError
from axcore.whole_files import open_regular

MAX_JSON_BYTES = 256 << 20
"""Of a file: several times the largest vocabulary or index of weights that is published."""

MAX_JSON_DEPTH = 128
"""More than a config may have, and little enough for functions that call themselves for each."""

MAX_DEPTH = 100
"""Nesting deeper than this is neither saved nor loaded."""

MAX_CHARACTERS = 1 << 20
"""A text that is longer is refused unread; a megabyte of YAML takes seconds to parse."""

MAX_DIGITS = 4300
"""Characters of a number, as Python limits integers: the time to read one grows with the square."""

BYTE_ORDER_MARK = "\ufeff"
"""Some editors write it in front of a text in UTF-8; it is not a part of the text."""

_POINTER = b"version https://git-lfs.github.com/spec/"
"""What a file begins with that Git LFS leaves in the place of one that it has not fetched.

Source: github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""


class JsonDepthError(ValueError):
    """A JSON text is nested too deep."""

    def __init__(self) -> None:
        super().__init__(f"it is nested deeper than {MAX_JSON_DEPTH} levels")


def read_json(path: Path | str, kind: str, *, error: type[AxcoreError]) -> dict[str, Any]:
    """Return a file's JSON object.

    Args:
        path: The file.
        kind: What it is, for errors.
        error: Raised where the file does not exist, or contains something else.
    """
    file = Path(path).expanduser()
    try:
        check_is_fetched(file, error=error)
        content = read_json_file(file)
    except OSError as cause:
        what = f"The {kind} {str(path)!r} cannot be read: {cause.strerror}."
        raise error(what, where=str(file.absolute())) from cause
    except ValueError as cause:
        what = f"The {kind} {str(path)!r} is not JSON: {cause}."
        raise error(what, where=str(file.absolute())) from cause
    if not isinstance(content, dict):
        raise error(f"The {kind} {str(path)!r} is not a JSON object.", where=str(file.absolute()))
    return content


def read_json_file(path: Path) -> Any:
    """Return the value in a file of JSON, in UTF-8.

    Raises:
        OSError: There is no such file, or it is a folder, a FIFO, a socket or a device.
        ValueError: It has more than `MAX_JSON_BYTES`, or `parse_json` refuses it.
    """
    with open_regular(path) as file:
        text = file.read(MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"it is larger than {MAX_JSON_BYTES >> 20} MiB")
    return parse_json(text)


def parse_json(text: str | bytes, *, allow_nan: bool = True) -> Any:
    """Return the value of a JSON text, in UTF-8 where it is bytes; a byte order mark is skipped.

    Args:
        text: It.
        allow_nan: Whether `NaN`, `Infinity` and `-Infinity` are numbers, which JSON has not and
            `json` writes.

    Raises:
        JsonDepthError: It is nested deeper than `MAX_JSON_DEPTH`.
        ValueError: It is not JSON or not UTF-8, an object has a key twice, or a number is too large
            or too small for a float. `json` itself takes the last of two keys, and 0 or infinity
            for such a number.
    """
    decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    decoder = _DECODER if allow_nan else _DECODER_WITHOUT_NAN
    try:
        value = decoder.decode(decoded.removeprefix(BYTE_ORDER_MARK))
    except RecursionError:
        raise JsonDepthError from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Check level by level: it needs no stack, and look at each value once."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(MAX_JSON_DEPTH):
        if not level:
            return
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
    if level:
        raise JsonDepthError


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


def _integer(text: str) -> int:
    return int(_checked_number(text))


def _fraction(text: str) -> float:
    return exact_float(_checked_number(text))


def _checked_number(text: str) -> str:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has {len(text):,} characters; at most {MAX_DIGITS} are read")
    return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


# Hooks in Python give other threads a turn between two numbers; the decoder in C would block them
# for as long as a long list takes.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_without_doubles, parse_int=_integer, parse_float=_fraction
)
_DECODER_WITHOUT_NAN = json.JSONDecoder(
    object_pairs_hook=_without_doubles,
    parse_int=_integer,
    parse_float=_fraction,
    parse_constant=_no_constant,
)


def first_double(keys: Iterable[Any]) -> Any:
    """Return the first of some keys that was there before, or None."""
    seen: set[Any] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


def check_is_fetched(file: Path, *, error: type[AxcoreError]) -> None:
    """Check that a file is itself, and no pointer of Git LFS to it.

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
    with open_regular(file) as opened:
        return opened.read(len(_POINTER)) != _POINTER


def check_length(text: str | bytes, set_in: str) -> None:
    """Refuse a text longer than any config is."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"the text is longer than {MAX_CHARACTERS >> 10} KiB",
            set_in=set_in,
            hint="no config is that long; check the file",
        )


def too_deep(set_in: str) -> ConfigError:
    """Return the error of data that nests deeper than any config does."""
    return ConfigError(
        f"nested deeper than {MAX_DEPTH} levels",
        set_in=set_in,
        hint="no config is that deep; check the file",
    )
