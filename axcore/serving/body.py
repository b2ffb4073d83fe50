"""The body of a request: JSON of a limited size, which arrives in a limited time."""

import asyncio
import re
from typing import Any

import numpy as np
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from axcore.config.json_files import MAX_JSON_DEPTH, parse_json
from axcore.serving.api_error import ApiError
from axcore.serving.fields import check_texts
from axcore.serving.limits import Limits

MEDIA_TYPE = "application/json"
_MAX_OBJECTS, _MAX_VALUES = 200_000, 1_100_000
"""Objects, lists and fields of a body; commas between values, so that a million tokens are read."""

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_DEPTH_STEPS = np.zeros(256, np.int8)
_DEPTH_STEPS[[*b"[{"]], _DEPTH_STEPS[[*b"]}"]] = 1, -1
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a surrogate pair, as JSON escapes it; bytes of UTF-8 hold none."""


async def read_body(request: HttpRequest, limits: Limits) -> bytes:
    """Returns the body of a request.

    Raises:
        ApiError: It is called something else than JSON, is too long, or does not arrive.
    """
    sent = request.headers.get("content-type", "")
    if sent.partition(";")[0].strip().lower() != MEDIA_TYPE:
        # Browsers send other types across sites without asking the server first.
        message = f"content-type is {sent!r:.80}; expected {MEDIA_TYPE}"
        hint = f"With curl, add -H 'content-type: {MEDIA_TYPE}'."
        raise ApiError(415, f"{message}. {hint}", code="unsupported_media_type")
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _body(request, limits.max_body_bytes)
    except TimeoutError as error:
        message = f"The body did not arrive within {limits.body_timeout_s:g} seconds."
        raise ApiError(408, message, code="body_timeout") from error


async def _body(request: HttpRequest, most: int) -> bytes:
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > most:
        raise _too_long(most)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise _too_long(most)
    except ClientDisconnect as error:
        request.state.figures.is_abandoned = True
        raise ApiError(400, "The body ended too early.", code="incomplete_body") from error
    return bytes(body)


def _too_long(most: int) -> ApiError:
    message = f"The body is too long; at most {most:,} bytes are accepted."
    return ApiError(413, message, code="body_too_long")


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
