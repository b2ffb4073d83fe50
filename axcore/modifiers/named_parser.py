"""Changes as users write them: `sliding_window`, or `remat(policy=minimal, at='**.layer')`."""

import re

from axcore.errors import ConfigError

_CHANGE = re.compile(r"\s*([^\s()=,]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_FIELD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_OPENING = {"(": ")", "[": "]", "{": "}"}


def parse_change(text: str) -> tuple[str, tuple[str, ...]]:
    """Returns a change's name, and the `field=value` texts in it.

    >>> parse_change("mesh_shape(mesh={'data': 2, 'fsdp': -1})")
    ('mesh_shape', ("mesh={'data': 2, 'fsdp': -1}",))

    Raises:
        ConfigError: The text is no change.
    """
    match = _CHANGE.fullmatch(text)
    if match is None:
        raise _not_a_change(text, "it has no name, or its parentheses do not close")
    name, inside = match.groups()
    if inside is None or not inside.strip():
        return name, ()
    values = []
    for part in _split(inside, text):
        field = _FIELD.fullmatch(part)
        if field is None:
            raise _not_a_change(text, f"{part.strip()!r} is no field=value")
        values.append(f"{field[1]}={field[2].strip()}")
    return name, tuple(values)


def _split(inside: str, text: str) -> list[str]:
    """Splits at the commas outside of brackets and quotes."""
    parts, closing, quote, start = [], "", "", 0
    for at, sign in enumerate(inside):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in _OPENING:
            closing += _OPENING[sign]
        elif closing and sign == closing[-1]:
            closing = closing[:-1]
        elif sign in _OPENING.values():
            raise _not_a_change(text, f"{sign!r} closes nothing")
        elif sign == "," and not closing:
            parts.append(inside[start:at])
            start = at + 1
    if quote or closing:
        raise _not_a_change(text, f"{quote or closing[-1]} is missing")
    return [*parts, inside[start:]]


def _not_a_change(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is no change: {reason}",
        where="--modify",
        hint="write a name, or name(field=value, ...) in quotes: --modify 'remat(policy=minimal)'",
    )
