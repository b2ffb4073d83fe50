"""`diff_config`: what differs between two configs, value by value."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from axcore.config.define import class_tag
from axcore.config.paths import Path, format_path
from axcore.config.render import config_name, format_value, render_config
from axcore.config.traverse import children
from axcore.config.values import is_config


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()
"""The side of a `Change` that has no value at that path."""


class Change(NamedTuple):
    """One difference; `before` or `after` is `ABSENT` where that side has no such path."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        before, after = self.before, self.after
        lines = [*_side("-", self.path, before, after), *_side("+", self.path, after, before)]
        return "\n".join(lines)


def diff_config(before: Any, after: Any) -> tuple[Change, ...]:
    """Return the differences between two configs, in the order of the tree.

    Two nodes of different classes are one change; inside of nodes of the same class each field,
    item and key is compared on its own.
    """
    return tuple(_changes(before, after, ()))


def format_diff(changes: tuple[Change, ...]) -> str:
    """Return changes as text, `- path: before` and `+ path: after`."""
    return "".join(f"{change}\n" for change in changes)


def _changes(before: Any, after: Any, path: Path) -> Iterator[Change]:
    if before is after:
        return
    if not _comparable_inside(before, after):
        if type(before) is not type(after) or before != after:
            yield Change(format_path(path), before, after)
        return
    ours, theirs = dict(children(before)), dict(children(after))
    for step in {**ours, **theirs}:
        old, new = ours.get(step, ABSENT), theirs.get(step, ABSENT)
        yield from _changes(old, new, (*path, step))


def _comparable_inside(before: Any, after: Any) -> bool:
    if is_config(before):
        return type(before) is type(after)
    both_tuples = isinstance(before, tuple) and isinstance(after, tuple)
    return both_tuples or (isinstance(before, Mapping) and isinstance(after, Mapping))


def _side(sign: str, path: str, value: Any, other: Any) -> list[str]:
    if value is ABSENT:
        return []
    if not is_config(value):
        return [f"{sign} {path}: {format_value(value)}"]
    first, *lines = render_config(value).splitlines()
    if is_config(other) and config_name(other) == config_name(value):
        first = class_tag(type(value))  # two classes of one name
    inner = [f"{sign} {path}.{line}" if path else f"{sign} {line}" for line in lines]
    return [f"{sign} {path}: {first}" if path else f"{sign} {first}", *inner]
