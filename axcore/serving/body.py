"""The body of a request: JSON of a limited size, which arrives in a limited time."""

import asyncio
import re
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from axcore.config.json_files import JsonDepthError, parse_json
from axcore.serving.api_error import ApiError
from axcore.serving.fields import check_texts
from axcore.serving.limits import Limits

MEDIA_TYPE = "application/json"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a surrogate pair, as JSON escapes it; bytes of UTF-8 hold none."""


async def read_json(request: HttpRequest, limits: Limits) -> Any:
    """Returns what the body of a request says.

    Raises:
        ApiError: It is no JSON, is called something else, is too long, or does not arrive.
    """
    sent = request.headers.get("content-type", "")
    if sent.partition(";")[0].strip().lower() != MEDIA_TYPE:
        # Browsers send other types across sites without asking the server first.
        message = f"content-type is {sent!r:.80}; expected {MEDIA_TYPE}"
        hint = f"With curl, add -H 'content-type: {MEDIA_TYPE}'."
        raise ApiError(415, f"{message}. {hint}", code="unsupported_media_type")
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            body = await _body(request, limits.max_body_bytes)
    except TimeoutError as error:
        message = f"The body did not arrive within {limits.body_timeout_s:g} seconds."
        raise ApiError(408, message, code="body_timeout") from error
    return _parsed(body)


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


def _parsed(body: bytes) -> Any:
    try:
        found = parse_json(body, allow_nan=False)
    except JsonDepthError as error:
        message = "The body holds objects within objects, too deep to be read."
        raise ApiError(400, message, code="invalid_json") from error
    except ValueError as error:  # bytes that are no UTF-8, too
        raise ApiError(400, f"The body is no JSON: {error}.", code="invalid_json") from error
    if _SURROGATE.search(body):
        check_texts(found)
    return found
