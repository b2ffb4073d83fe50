"""`Media`: an input of a row as a file that browsers show; and files that are in a URL."""

import base64
import re

import attrs

_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.+-]+=[\w.+-]+)*;base64,")


@attrs.frozen(kw_only=True)
class Media:
    """A file of a type that pages may contain.

    Args:
        mime: Its type, `image/png` or another one of pictures.
        content: The file.
    """

    mime: str = attrs.field(validator=attrs.validators.matches_re(r"image/[a-z0-9.+-]+"))
    content: bytes


def read_data_url(url: str) -> bytes:
    """Return the file that is in a URL, `data:image/png;base64,...`.

    Raises:
        ValueError: It is of another form, or not base64.
    """
    found = _DATA_URL.match(url)
    if found is None:
        raise ValueError("a data URL of another form than data:image/png;base64,...")
    try:
        return base64.b64decode(url[found.end() :], validate=True)
    except ValueError as error:  # of the encoding, or a letter that is not of ASCII
        raise ValueError(f"not base64: {error}") from error
