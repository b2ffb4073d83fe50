"""`Media`: an input of a row as a file that browsers show."""

import attrs


@attrs.frozen(kw_only=True)
class Media:
    """A file of a type that pages may contain.

    Args:
        mime: Its type, `image/png` or another one of pictures.
        content: The file.
    """

    mime: str = attrs.field(validator=attrs.validators.matches_re(r"image/[a-z0-9.+-]+"))
    content: bytes
