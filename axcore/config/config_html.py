"""A config as notebooks show it: a tree that opens where it differs from its defaults."""

from collections.abc import Mapping
from typing import Any

from axcore.config.define import field_names
from axcore.config.field_docs import field_docs
from axcore.config.paths import Key
from axcore.config.render import config_name, format_value, is_at_default
from axcore.config.required import REQUIRED
from axcore.config.traverse import children
from axcore.config.values import is_config
from axcore.markup import Html, card, element, joined

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
