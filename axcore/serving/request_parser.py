"""`RequestParser`: a JSON object of a request, read field by field and checked.

A field that is null is one that was left out. Each method names the field that it reads, so those
that nobody asked for are known at the end, and are an error: a misspelt setting is never ignored.
"""

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from axcore.config.json_files import MAX_JSON_DEPTH, parse_json
from axcore.config.suggest import suggest_names
from axcore.serving.api_error import ApiError, invalid

_LOG = logging.getLogger("axcore.serving")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
"""A number as forms write it."""

_PLACES = re.compile(r"\[\d+\]")


@cache
def say_ignored(name: str, why: str) -> None:
    """Log that a field is ignored, the first time that it is."""
    _LOG.warning("the field %s of requests is ignored: %s", name, why)


class RequestParser:
    """Reads a JSON object.

    Args:
        content: What was sent.
        where: Path of the object in the request, empty for its root.
        is_form: Whether it is a form, whose numbers come as text.

    Raises:
        ApiError: It is not an object.
    """

    def __init__(self, content: Any, where: str = "", *, is_form: bool = False) -> None:
        if not isinstance(content, Mapping):
            what = where or "the body"
            raise invalid(f"{what} is {_kind(content)}; expected an object", where or None)
        self._content, self._where, self._known = content, where, set[str]()
        self._is_form = is_form

    def path(self, name: str) -> str:
        """Return the path of a field, as errors name it."""
        return f"{self._where}.{name}" if self._where else name

    def raw(self, name: str) -> Any:
        """Return a value as it was sent; None where it was left out."""
        # Noted as known even where it is absent: `finish` names fields that nothing has asked for.
        self._known.add(name)
        return self._content.get(name)

    def text(self, name: str) -> str | None:
        """Return a text."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return checked_text(value, self.path(name))

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def integer(self, name: str, *, min_value: int, max_value: int) -> int | None:
        """Return a whole number between two, both included."""
        value = self.raw(name)
        if value is None:
            return None
        # Clients in languages with one kind of number send 16 as 16.0.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        # A bool is an int in Python, and `"n": true` is a mistake.
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, value, "a whole number")
        return int(self._in_range(name, value, min_value, max_value))

    def number(self, name: str, *, min_value: float, max_value: float, default: float) -> float:
        """Return a number between two, both included."""
        value = self.raw(name)
        if value is None:
            return default
        if self._is_form and isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        return float(self._in_range(name, value, min_value, max_value))

    def choice(self, name: str, known: Sequence[str]) -> str | None:
        """Return one of several texts."""
        value = self.text(name)
        if value is not None and value not in known:
            expected = " or ".join(repr(one) for one in known)
            raise invalid(f"{self.path(name)} is {value!r}; expected {expected}", self.path(name))
        return value

    def items(self, name: str, *, max_items: int) -> list[Any] | None:
        """Return a list of anything."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        if len(value) > max_items:
            message = f"{self.path(name)} has {len(value)} items; at most {max_items} are accepted"
            raise invalid(message, self.path(name))
        return value

    def file(self, name: str) -> bytes:
        """Return the content of a file of a form.

        Raises:
            ApiError: There is none, or it is empty.
        """
        value, path = self.raw(name), self.path(name)
        if value is None:
            raise invalid(f"{path} is missing; expected a file", path, code="missing_field")
        if not isinstance(value, bytes):
            message = f"{path} is a text; expected a file, with a filename"
            raise invalid(message, path, code="invalid_type")
        if not value:
            raise invalid(f"{path} is empty", path)
        return value

    def inner(self, name: str) -> "RequestParser | None":
        """Return an object within this one."""
        value = self.raw(name)
        return None if value is None else RequestParser(value, self.path(name))

    def refuse(self, name: str, why: str, *, harmless: Sequence[Any] = ()) -> None:
        """Raise where a field is used that is known and not supported.

        Args:
            name: The field.
            why: What is said; a sentence.
            harmless: Values that ask for nothing.
        """
        value = self.raw(name)
        # `is` as well, for `1 == True`.
        if value is None or any(value is one or value == one for one in harmless):
            return
        path = self.path(name)
        raise invalid(f"{path} is not supported. {why}", path, code="unsupported_field")

    def ignore(self, name: str, why: str) -> None:
        """Accept a field that changes no answer; the log says once that it is ignored."""
        if self.raw(name) is not None:
            # Values are cut out of the path: a log line for
            # each index would be a line for each request.
            say_ignored(_PLACES.sub("[]", self.path(name)), why)

    def finish(self) -> None:
        """Raise where a field was sent that nothing has read, unless it is null."""
        for name, value in self._content.items():
            if name not in self._known and value is not None:
                # Names are a client's, so they are cut before they are shown.
                path = self.path(str(name)[:64])
                hint = suggest_names(str(name)[:64], self._known, max_names=40)
                message = f"There is no field {path!r}; {hint}"
                raise invalid(message, path, code="unknown_field")

    def _in_range(self, name: str, value: float, min_value: float, max_value: float) -> float:
        if not min_value <= value <= max_value:
            path, shown = self.path(name), f"{value!r:.40}"
            message = f"{path} is {shown}; expected a number from {min_value} to {max_value}"
            raise invalid(message, path)
        return value

    def _wrong(self, name: str, value: Any, expected: str) -> ApiError:
        path = self.path(name)
        return invalid(f"{path} is {_kind(value)}; expected {expected}", path, code="invalid_type")


def checked_text(text: str, where: str) -> str:
    """Return a text that can be written as UTF-8.

    Raises:
        ApiError: It contains half of a surrogate pair, which JSON can write and no text has.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = f"at character {error.start}"
        message = f"{where} is not valid Unicode text: there is half of a surrogate pair {place}"
        raise invalid(message, where) from error
    return text


def check_texts(content: Any, where: str = "") -> None:
    """Check that all texts and names of fields in JSON can be written as UTF-8.

    Raises:
        ApiError: One contains half of a surrogate pair.
    """
    # Encoded in one piece at first: walking a body of a million values costs seconds.
    if _is_text(json.dumps(content, ensure_ascii=False)):
        return
    # The path is made here and not on the way down: a long name above many values would be
    # copied for each of them.
    if isinstance(content, str):
        checked_text(content, where or "the body")
    elif isinstance(content, list):
        for number, one in enumerate(content):
            check_texts(one, f"{where}[{number}]")
    elif isinstance(content, dict):
        for name, inner in content.items():
            checked_text(name, f"the name of a field of {where or 'the body'}")
            check_texts(inner, f"{where}.{name:.64}" if where else name[:64])


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def finite_number(value: Any, where: str, *, min_value: float, max_value: float) -> float:
    """Return a number that was sent as a value of a mapping."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not min_value <= value <= max_value:
        message = f"{where} is {value!r:.40}; expected a number from {min_value} to {max_value}"
        raise invalid(message, where)
    return float(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null"}
    if type(value) in names:
        return names[type(value)]
    return str(value).lower() if isinstance(value, bool) else f"{value!r:.40}"


_MAX_OBJECTS, _MAX_VALUES = 200_000, 1_100_000
"""Objects, lists and fields of a body; commas between values, so that a million tokens are read."""

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_DEPTH_STEPS = np.zeros(256, np.int8)
_DEPTH_STEPS[[*b"[{"]], _DEPTH_STEPS[[*b"]}"]] = 1, -1
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a surrogate pair, as JSON escapes it; bytes of UTF-8 hold none."""


def parse_body(body: bytes) -> Any:
    """Return what a body says.

    Raises:
        ApiError: It is not valid JSON, or has more parts, depth or digits than are read.
    """
    _check_size(body)
    try:
        found = parse_json(body, allow_nan=False)
    except ValueError as error:  # bytes that are not UTF-8, too
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from error
    # Few bodies have an escaped surrogate at all, so most are not looked at again.
    if _SURROGATE.search(body):
        check_texts(found)
    return found


def _check_size(body: bytes) -> None:
    """Refuse a body that takes long to parse, which happens in one piece while others wait."""
    if len(body) < MAX_JSON_DEPTH:
        return
    # Without strings, in which brackets mean nothing.
    signs = _STRINGS.sub(b"", body)
    opened, closed = signs.count(b"[") + signs.count(b"{"), signs.count(b"]") + signs.count(b"}")
    num_objects, num_values = opened + signs.count(b":"), signs.count(b",")
    for number, most, what in (
        (num_objects, _MAX_OBJECTS, "objects, lists and fields"),
        (num_values, _MAX_VALUES, "values"),
    ):
        if number > most:
            message = f"The body has {number:,} {what}; at most {most:,} are accepted."
            raise ApiError(400, message, code="body_too_complex")
    # Only where there are enough brackets can it be deep.
    if opened <= MAX_JSON_DEPTH and closed <= opened:
        return
    steps = _DEPTH_STEPS[np.frombuffer(signs, np.uint8)]
    depth = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    if depth > MAX_JSON_DEPTH:
        message = (
            f"The body contains objects within objects, too deep to be read: {depth}; at most "
        )
        raise ApiError(400, f"{message}{MAX_JSON_DEPTH} are.", code="invalid_json")
