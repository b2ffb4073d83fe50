"""`parse_form`: the fields and files of a body of `multipart/form-data`.

Source: RFC 7578, and RFC 2046, section 5.1.1.
"""

import re
from typing import Any

from axcore.serving.api_error import ApiError, invalid

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name="([^"\r\n]*)"', re.IGNORECASE)
_FILE_NAME = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)
_DISPOSITION = re.compile(rb"content-disposition:([^\r\n]*)", re.IGNORECASE)
_MAX_PARTS = 64


def parse_form(body: bytes, content_type: str) -> dict[str, Any]:
    """Return what a form holds: text by name, bytes of a file, a list where names end in `[]`.

    Args:
        body: The body.
        content_type: The header, which says how parts are separated.

    Raises:
        ApiError: It is not a form, its end is missing, or a field comes twice.
    """
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise _damaged("content-type names no boundary")
    mark = b"\r\n--" + (match[1] or match[2]).encode("latin-1")
    # The first boundary may have no line before it.
    _, *parts = (b"\r\n" + body).split(mark, _MAX_PARTS + 1)
    if len(parts) > _MAX_PARTS:
        raise _damaged(f"it has more than {_MAX_PARTS} parts")
    if not parts or not parts[-1].startswith(b"--"):
        raise _damaged("its last boundary is missing")
    found: dict[str, Any] = {}
    for part in parts[:-1]:
        name, value = _part(part)
        if name.endswith("[]"):
            found.setdefault(name, []).append(value)
        elif name in found:
            raise invalid(f"{name:.64} comes twice", name[:64])
        else:
            found[name] = value
    return found


def _part(part: bytes) -> tuple[str, Any]:
    """Return the name of a part, and its text or the bytes of its file."""
    # Blanks may follow a boundary on its line.
    head, separator, content = part.partition(b"\r\n\r\n")
    disposition = _DISPOSITION.search(head)
    named = disposition and _NAME.search(disposition[1])
    if not separator or disposition is None or not named:
        raise _damaged("a part has no name")
    try:
        name = named[1].decode()
        if _FILE_NAME.search(disposition[1]):
            return name, content
        return name, content.decode()
    except UnicodeDecodeError as error:
        raise _damaged("a field is not UTF-8") from error


def _damaged(why: str) -> ApiError:
    return ApiError(400, f"The body is not a form: {why}.", code="invalid_form")
