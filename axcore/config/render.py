"""Configs as people read them: text, differences, golden files, fields, and HTML."""

import difflib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import attrs

from axcore.config.define import (
    class_tag,
    field_annotations,
    field_defaults,
    field_docs,
    field_names,
    origins_of,
)
from axcore.config.paths import Key, Path, children, format_path
from axcore.config.values import REQUIRED, is_config, type_name
from axcore.errors import ConfigError
from axcore.markup import Html, card, element, joined


def render_config(cfg: Any, *, fold_defaults: bool = True, origins: bool = False) -> str:
    """Return the golden form of a config.

    A config node is a line `path: Class`, followed by its fields. Scalars and tuples of scalars
    are on one line.

    Args:
        cfg: The config.
        fold_defaults: Leaves out fields that have their default.
        origins: Adds to each line where its value was set, where that is known.
    """
    lines = list(_lines(cfg, (), fold_defaults, ""))
    if not origins:
        return "".join(f"{path}: {value}\n" if path else f"{value}\n" for path, value, _ in lines)
    width = max(len(f"{path}: {value}") for path, value, _ in lines)
    texts = [(f"{path}: {value}" if path else value, origin) for path, value, origin in lines]
    return "".join(
        f"{text:<{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in texts
    )


def format_value(value: Any) -> str:
    """Return one line of text for any config value."""
    if is_config(value):
        inner = ", ".join(
            f"{name}={format_value(getattr(value, name))}" for name in _shown_fields(value, True)
        )
        return f"{config_name(value)}({inner})" if inner else config_name(value)
    if value is REQUIRED:
        return "REQUIRED"
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return "(" + ", ".join(map(format_value, value)) + comma + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {format_value(v)}" for k, v in value.items()) + "}"
    if callable(value):
        return f"{value.__module__}:{value.__qualname__}"
    return repr(value)


def config_name(cfg: Any) -> str:
    """Return the short name of a config's class: `FeedForward` for `FeedForward.Config`."""
    name = type(cfg).__qualname__.split("<locals>.")[-1]
    return name.removesuffix(".Config")


def _lines(value: Any, path: Path, fold: bool, origin: str) -> Iterator[tuple[str, str, str]]:
    if not _holds_config(value):
        yield format_path(path), format_value(value), origin
        return
    if is_config(value):
        yield format_path(path), config_name(value), origin
        origins = origins_of(value)
        for name in _shown_fields(value, fold):
            set_in = str(origins.get(name, ""))
            yield from _lines(getattr(value, name), (*path, name), fold, set_in)
        return
    for step, child in children(value):
        yield from _lines(child, (*path, step), fold, origin)


def _shown_fields(cfg: Any, fold: bool) -> Iterator[str]:
    for name in field_names(cfg):
        if not (fold and is_at_default(cfg, name)):
            yield name


def is_at_default(cfg: Any, name: str) -> bool:
    """Return whether a field has its default."""
    defaults, value = field_defaults(type(cfg)), getattr(cfg, name)
    if name not in defaults:
        return False
    default = defaults[name]
    return value is default or (value is not REQUIRED and bool(value == default))


def _holds_config(value: Any) -> bool:
    if is_config(value):
        return True
    return isinstance(value, (tuple, Mapping)) and any(_holds_config(v) for _, v in children(value))


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


def check_golden(cfg: Any, file: str | pathlib.Path, *, update: bool = False) -> None:
    """Check that a config still renders to the text in a golden file.

    Args:
        cfg: The config.
        file: The golden file.
        update: Writes the file instead of comparing with it.

    Raises:
        ConfigError: The file is missing or differs; the message contains the difference.
    """
    file, text = pathlib.Path(file), render_config(cfg)
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    if not file.exists():
        raise ConfigError(
            f"there is no golden file for {type(cfg).__qualname__}",
            where=str(file),
            hint=f"check_golden(cfg, {str(file)!r}, update=True), and read it before you commit it",
        )
    kept = file.read_text(encoding="utf-8")
    if kept != text:
        lines = difflib.unified_diff(
            kept.splitlines(), text.splitlines(), "golden", "now", lineterm="", n=0
        )
        raise ConfigError(
            f"{type(cfg).__qualname__} is not what its golden file says:\n" + "\n".join(lines),
            where=str(file),
            hint="if the change is intended, write the file again with update=True",
        )


@attrs.frozen
class Field:
    """One field of a config tree, as a person looks for it.

    Args:
        path: Where it is.
        type: What it may hold.
        value: What it holds; a config by its class.
        is_required: Whether somebody has to fill it in; parents fill in most.
        is_default: Whether it has its default.
        set_in: Where it was set, if that is known.
        doc: What its class says about it.
    """

    path: str
    type: str
    value: str
    is_required: bool
    is_default: bool
    set_in: str
    doc: str


def fields_of(node: Any, path: str = "") -> Iterator[Field]:
    """Yield the fields of a config and of all below it, those of a field right after it."""
    if isinstance(node, tuple):
        for index, item in enumerate(node):
            yield from fields_of(item, f"{path}[{index}]")
    if not is_config(node):
        return
    cls: type = type(node)
    types, defaults, docs = field_annotations(cls), field_defaults(cls), field_docs(cls)
    origins = origins_of(node)
    for name in field_names(node):
        value = getattr(node, name)
        here = f"{path}.{name}" if path else name
        yield Field(
            path=here,
            type=type_name(types[name]),
            value=cls_name(value) if is_config(value) else _short(value),
            is_required=value is REQUIRED,
            is_default=value == defaults.get(name, ABSENT),
            set_in=str(origins[name]) if name in origins else "",
            doc=docs.get(name, ""),
        )
        yield from fields_of(value, here)


def cls_name(value: Any) -> str:
    """Return the name of what a config describes."""
    return type(value).__qualname__.removesuffix(".Config")


def _short(value: Any) -> str:
    if isinstance(value, tuple) and any(map(is_config, value)):
        return f"{len(value)} of " + ", ".join(sorted({cls_name(one) for one in value}))
    text = getattr(value, "__qualname__", None) or repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


OPEN_LEVELS = 2
_LONG = 160


def config_html(cfg: Any) -> str:
    """Return a config as HTML: what differs from its defaults is in color, the rest is folded."""
    note = joined(["config; ", element("span", "colored", class_="accent"), ": not the default"])
    return card(config_name(cfg), note, _fields(cfg, 0))


def _fields(cfg: Any, level: int) -> Html:
    """Return the fields of a config: those that differ, then the others in a fold."""
    cls: type = type(cfg)
    docs = field_docs(cls)
    shown: list[Html] = []
    folded: list[Html] = []
    for name in field_names(cfg):
        value, differs = getattr(cfg, name), not is_at_default(cfg, name)
        group = shown if differs else folded
        group.append(_field(name, value, docs.get(name, ""), level=level, differs=differs))
    if folded:
        title = element("summary", f"{len(folded)} at their default", class_="soft")
        shown.append(element("details", title, *folded))
    return joined(shown)


def _field(name: str, value: Any, doc: str, *, level: int, differs: bool) -> Html:
    label = element("code", name, title=doc) if doc else element("code", name)
    if is_config(value):
        title = element("summary", label, " ", _marked(config_name(value), differs))
        return _fold(title, _fields(value, level + 1), is_open=differs and level < OPEN_LEVELS)
    items = list(children(value)) if isinstance(value, (tuple, Mapping)) else []
    if any(is_config(item) for _, item in items):
        title = element("summary", label, " ", _marked(f"{len(items)} items", differs))
        inner = [
            _field(_step(step), item, "", level=level + 1, differs=differs) for step, item in items
        ]
        return _fold(title, joined(inner), is_open=differs and level < OPEN_LEVELS)
    if value is REQUIRED:
        shown = element("span", "REQUIRED", class_="bad")
    else:
        shown = _marked(_shortened(format_value(value)), differs)
    return element("div", label, " = ", shown, class_="line")


def _fold(title: Html, inner: Html, *, is_open: bool) -> Html:
    return element("details", title, inner, **({"open": ""} if is_open else {}))


def _marked(text: str, differs: bool) -> Html:
    return element("code", text, class_="accent" if differs else "soft")


def _step(step: Any) -> str:
    return str(step) if isinstance(step, Key) else f"[{step}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."
