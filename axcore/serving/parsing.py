"""`parse_body`: JSON that anybody may have sent; long bodies are parsed in another process."""

import re
from typing import Any

import numpy as np

from axcore.config.json_files import MAX_JSON_DEPTH, parse_json
from axcore.serving.api_error import ApiError
from axcore.serving.fields import check_texts

_MAX_OBJECTS, _MAX_VALUES = 200_000, 1_100_000
"""Objects, lists and fields of a body; commas between values, so that a million tokens are read."""

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_DEPTH_STEPS = np.zeros(256, np.int8)
_DEPTH_STEPS[[*b"[{"]], _DEPTH_STEPS[[*b"]}"]] = 1, -1
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a surrogate pair, as JSON escapes it; bytes of UTF-8 hold none."""


def parse_body(body: bytes) -> Any:
    """Returns what a body says.

    Raises:
        ApiError: It is no JSON, or has more parts, more depth or longer numbers than are read.
    """
    _check_size(body)
    try:
        found = parse_json(body, allow_nan=False)
    except ValueError as error:  # bytes that are no UTF-8, too
        raise ApiError(400, f"The body is no JSON: {error}.", code="invalid_json") from error
    if _SURROGATE.search(body):
        check_texts(found)
    return found


def _check_size(body: bytes) -> None:
    """Refuse a body that takes long to parse, which happens in one piece while others wait."""
    if len(body) < MAX_JSON_DEPTH:
        return
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
    if opened <= MAX_JSON_DEPTH and closed <= opened:
        return
    steps = _DEPTH_STEPS[np.frombuffer(signs, np.uint8)]
    depth = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    if depth > MAX_JSON_DEPTH:
        message = f"The body holds objects within objects, too deep to be read: {depth}; at most "
        raise ApiError(400, f"{message}{MAX_JSON_DEPTH} are.", code="invalid_json")
