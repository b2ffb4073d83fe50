"""Paths into a config tree, and the globs that match them.

A path reads `model.decoder.layers[0].rules["embed"]`: a field by its name, an item of a tuple by
its index, an item of a mapping by its quoted key (a JSON string). In a glob `*` matches any one
field, `[*]` for any one index or key, and `**` for any number of steps, none included.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from axcore.errors import ConfigError


class Key(str):
    """A step into a mapping."""

    __slots__ = ()


Step = str | int
Path = tuple[Step, ...]

ANY: Final = "*"
ANY_ITEM: Final = "[*]"
ANY_DEPTH: Final = "**"

_TOKEN = re.compile(
    r"""(?P<deep>\*\*)|(?P<any>\*)|(?P<name>[A-Za-z_]\w*)"""
    r"""|\[(?P<index>\d+)\]|(?P<item>\[\*\])|\[(?P<quoted>"(?:[^"\\]|\\.)*"|'[^']*')\]|(?P<dot>\.)"""
)


class Pattern(tuple[Step, ...]):
    """A parsed glob. Wildcards are kept as the constants `ANY`, `ANY_ITEM` and `ANY_DEPTH`."""

    __slots__ = ()

    @property
    def is_glob(self) -> bool:
        """Whether the pattern holds a wildcard."""
        return any(type(step) is _Wildcard for step in self)


class _Wildcard(str):
    __slots__ = ()


def parse_pattern(text: str) -> Pattern:
    """Parse a path or glob.

    Raises:
        ConfigError: The text is not a path.
    """
    steps: list[Step] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _not_a_path(text, at)
        at = match.end()
        kind = match.lastgroup
        if kind == "dot":
            if not steps or at == len(text) or text[at] in ".[":
                raise _not_a_path(text, at - 1)
            continue
        steps.append(_step(kind, match))
        if kind in ("name", "any", "deep") and at < len(text) and text[at] not in ".[":
            raise _not_a_path(text, at)
    return Pattern(steps)


def _step(kind: str | None, match: re.Match[str]) -> Step:
    if kind == "deep":
        return _Wildcard(ANY_DEPTH)
    if kind == "any":
        return _Wildcard(ANY)
    if kind == "item":
        return _Wildcard(ANY_ITEM)
    if kind == "index":
        return int(match["index"])
    if kind == "quoted":
        return _key(match["quoted"], match.string)
    return match["name"]


def _key(quoted: str, text: str) -> Key:
    if quoted[0] == "'":
        return Key(quoted[1:-1])
    try:
        return Key(json.loads(quoted, strict=False))
    except ValueError:
        raise _not_a_path(text, text.index(quoted)) from None


def _not_a_path(text: str, at: int) -> ConfigError:
    return ConfigError(
        f"{text!r} is not a path: cannot read {text[at:]!r}",
        hint='write paths as model.layers[0].rules["key"]; * is one step, ** any number',
    )


def format_path(path: Sequence[Step]) -> str:
    """Return a path as text; the root is the empty string."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif isinstance(step, Key):
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
        elif step == ANY_ITEM:
            text += step
        else:
            text += f".{step}" if text else step
    return text


def matches(pattern: Sequence[Step], path: Sequence[Step]) -> bool:
    """Whether a glob matches a whole path."""
    if not pattern:
        return not path
    head, rest = pattern[0], pattern[1:]
    if type(head) is _Wildcard and head == ANY_DEPTH:
        return any(matches(rest, path[i:]) for i in range(len(path) + 1))
    return bool(path) and _step_matches(head, path[0]) and matches(rest, path[1:])


def matches_below(pattern: Sequence[Step], path: Sequence[Step]) -> bool:
    """Whether a glob matches a whole path, neither of them empty; quick to say no."""
    return _step_matches(pattern[-1], path[-1], any_depth=True) and matches(pattern, path)


def _step_matches(pattern: Step, step: Step, any_depth: bool = False) -> bool:
    is_item = isinstance(step, (int, Key))
    if type(pattern) is _Wildcard:
        return (any_depth and pattern == ANY_DEPTH) or is_item == (pattern == ANY_ITEM)
    return pattern == step and isinstance(pattern, (int, Key)) == is_item
