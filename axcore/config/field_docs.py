"""What the docstrings of config classes say of their fields."""

import inspect
import re
from collections.abc import Mapping
from functools import cache

_ARGUMENT = re.compile(r"^ {4}(\w+)(?: \([^)]*\))?: (.*)$")


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """Return what the `Args:` of a class and of those it inherits from say of each field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _arguments(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
    return found


def _arguments(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    _, _, section = text.partition("\nArgs:\n")
    name = ""
    for line in section.splitlines():
        if line and not line.startswith("    "):
            break
        begins = _ARGUMENT.match(line)
        if begins:
            name = begins[1]
            found[name] = begins[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found
