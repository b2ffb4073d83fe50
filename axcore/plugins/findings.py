"""`Finding`: what a doctor check found, and how to fix it."""

from typing import Any, Literal

import attrs

from axcore.errors import PluginError
from axcore.registration.validators import mismatch, of_type

Level = Literal["ok", "warning", "error"]
_LEVELS = ("ok", "warning", "error")


def _level(finding: Any, attribute: Any, value: Any) -> None:
    if value not in _LEVELS:
        raise mismatch(finding, attribute, value, expected=" or ".join(map(repr, _LEVELS)))


def _hint_unless_ok(finding: Any, attribute: Any, value: Any) -> None:
    of_type(str)(finding, attribute, value)
    if not value and finding.level != "ok":
        raise PluginError(f"a Finding of level {finding.level!r} says how to fix it")


@attrs.frozen
class Finding:
    """One thing found.

    Args:
        level: "error" stops runs from working, "warning" may surprise, "ok" informs.
        text: What was found, with values.
        hint: What to type or change; may be left out only where all is well.
    """

    level: Level = attrs.field(validator=_level)
    text: str = attrs.field(validator=of_type(str))
    hint: str = attrs.field(default="", validator=_hint_unless_ok)
