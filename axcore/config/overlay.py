"""Part of a config as plain data, laid over a whole one: by path, or nested as the config is."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from axcore.config.decode import decode_value
from axcore.config.edit import matching_paths, update_config
from axcore.config.paths import parse_pattern
from axcore.config.traverse import walk
from axcore.config.values import is_config
from axcore.errors import ConfigError

C = TypeVar("C")

_TAGS = frozenset(("type", "call", "function", "required", "mapping"))
"""Keys of data that describes a value whole, and so takes the place of what is there."""


def overlay(cfg: C, data: Mapping[str, Any], *, set_in: str) -> C:
    """Return `cfg` with the values of plain data.

    Args:
        cfg: The root.
        data: `{"max_steps": 10, "model.dim": 64, "**.dropout.rate": 0.1}`, where a mapping below
            the path of a config is of paths below it: `{"model": {"dim": 64}}`. One with a `type`
            is a config that takes the old one's place.
        set_in: Where the data comes from, for provenance and errors.

    Raises:
        ConfigError: Listing every path that matches nothing and every value that does not fit.
    """
    changes: dict[str, Any] = {}
    for path, value in _flat(cfg, data, "", set_in):
        if path in changes:
            raise ConfigError("it is set twice", where=path, set_in=set_in, hint="keep one of them")
        changes[path] = decode_value(value, set_in)
    return update_config(cfg, changes, set_in=set_in)


def _flat(cfg: Any, data: Mapping[str, Any], above: str, set_in: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        path = f"{above}{key}"
        is_nested = isinstance(value, Mapping) and _TAGS.isdisjoint(value)
        if is_nested and _holds_config(cfg, path, set_in):
            yield from _flat(cfg, value, f"{path}.", set_in)
        else:
            yield path, value


def _holds_config(cfg: Any, path: str, set_in: str) -> bool:
    try:
        found = set(matching_paths(cfg, parse_pattern(path)))
    except ConfigError as error:
        raise ConfigError(error.what, where=error.where, set_in=set_in, hint=error.hint) from None
    return any(is_config(node) for place, node in walk(cfg) if place in found)
