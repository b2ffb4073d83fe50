"""The fields of a config tree as a person looks for them: type, value, origin and purpose."""

from collections.abc import Iterator
from typing import Any

import attrs

from axcore.config.define import field_annotations, field_defaults, field_names
from axcore.config.diff import ABSENT
from axcore.config.field_docs import field_docs
from axcore.config.provenance import origins_of
from axcore.config.required import REQUIRED
from axcore.config.values import is_config, type_name


@attrs.frozen
class Field:
    """One field of a config tree, as a person looks for it.

    Args:
        path: Where it is.
        type: What it may hold.
        value: What it holds; a config by its class.
        is_required: Whether somebody has to fill it in; parents fill in most.
        is_default: Whether it holds its default.
        set_in: Where it was set, if that is known.
        doc: What its class says of it.
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
