"""`response_format`: what answers must follow."""

from typing import Any

from axcore.serving.api_error import invalid
from axcore.serving.fields import Fields


def read_response_format(fields: Fields) -> Any:
    """Returns the grammar that a request names; None where any text will do.

    Raises:
        ApiError: There is no such format, or its schema cannot be followed.
    """
    inner = fields.inner("response_format")
    if inner is None:
        return None
    kind = inner.raw("type")
    if kind == "text":
        inner.finish()
        return None
    path = inner.path("type")
    raise invalid(f"{path} is {kind!r:.40}; expected 'text'", path)
