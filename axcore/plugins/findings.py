"""`Finding`: what a doctor check found, and how to fix it."""

from collections.abc import Callable
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
    if not value and finding.level != "ok" and finding.fix is None:
        raise PluginError(f"a Finding of level {finding.level!r} says how to fix it")


@attrs.frozen
class Fix:
    """What `axcore doctor --fix` does about a finding; it loses nothing that cannot be made again.

    Args:
        text: What it does, as a command: "remove 3 files".
        apply: Does it, once it is asked for.
    """

    text: str = attrs.field(validator=of_type(str))
    apply: Callable[[], None] = attrs.field(validator=attrs.validators.is_callable())


def _fix_or_none(finding: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, Fix | None):
        raise mismatch(finding, attribute, value, expected="a Fix")


@attrs.frozen
class Finding:
    """One thing found.

    Args:
        level: "error" stops runs from working, "warning" may surprise, "ok" informs.
        text: What was found, with values.
        hint: What to type or change; may be left out only where all is well, or there is a fix.
        fix: What `axcore doctor --fix` does about it, where it can.
    """

    level: Level = attrs.field(validator=_level)
    text: str = attrs.field(validator=of_type(str))
    hint: str = attrs.field(default="", validator=_hint_unless_ok)
    fix: Fix | None = attrs.field(default=None, validator=_fix_or_none)
