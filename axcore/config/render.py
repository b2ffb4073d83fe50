"""`render_config`: a config as stable, readable text, one `path: value` a line, defaults folded."""

from collections.abc import Iterator, Mapping
from typing import Any

from axcore.config.define import field_defaults, field_names
from axcore.config.paths import Path, format_path
from axcore.config.provenance import origins_of
from axcore.config.required import REQUIRED
from axcore.config.traverse import children
from axcore.config.values import is_config


def render_config(cfg: Any, *, fold_defaults: bool = True, origins: bool = False) -> str:
    """Return the golden form of a config.

    A config node is a line `path: Class`, followed by its fields. Scalars and tuples of scalars
    are on one line.

    Args:
        cfg: The config.
        fold_defaults: Leaves out fields that hold their default.
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
    """Return whether a field holds its default."""
    defaults, value = field_defaults(type(cfg)), getattr(cfg, name)
    if name not in defaults:
        return False
    default = defaults[name]
    return value is default or (value is not REQUIRED and bool(value == default))


def _holds_config(value: Any) -> bool:
    if is_config(value):
        return True
    return isinstance(value, (tuple, Mapping)) and any(_holds_config(v) for _, v in children(value))
