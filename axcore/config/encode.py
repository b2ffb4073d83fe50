"""From a config to plain data.

A config is a mapping with its class under `type`; a call of another library's function has the
function under `call`; a function is `{"function": "module:name"}`. Where a field or a key has the
name of such a tag, the fields are one level deeper, under `fields` or `mapping`.
"""

from collections.abc import Mapping
from typing import Any

from axcore.config.call import CallConfig, call_target, function_reference, set_fields
from axcore.config.define import class_tag, field_names
from axcore.config.paths import Key, Path, format_path
from axcore.config.required import REQUIRED
from axcore.config.values import is_config
from axcore.errors import ConfigError

MAX_DEPTH = 100
"""Nesting deeper than this is neither saved nor loaded."""

_TAGS = frozenset(("type", "call", "function", "required", "mapping", "fields"))


def to_dict(cfg: Any) -> dict[str, Any]:
    """Return a config as plain dicts, lists and scalars.

    Raises:
        ConfigError: It holds a lambda or local function, which has no name to save, or nests too
            deep.
    """
    data: dict[str, Any] = _encode(cfg, ())
    return data


def wraps_fields(cls: type) -> bool:
    """Whether a class has a field named like a tag, so that its fields are under `fields`."""
    return not _TAGS.isdisjoint(field_names(cls))


def _encode(value: Any, path: Path) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if value is REQUIRED:
        return {"required": True}
    if len(path) >= MAX_DEPTH:
        raise ConfigError(
            f"nested deeper than {MAX_DEPTH} levels", where=f"{format_path(path[:6])}..."
        )
    if isinstance(value, CallConfig):
        fields = {n: _encode(v, (*path, n)) for n, v in set_fields(value).items()}
        return {"call": _reference(call_target(type(value)), path), "fields": fields}
    if is_config(value):
        fields = {n: _encode(getattr(value, n), (*path, n)) for n in field_names(value)}
        tag = class_tag(type(value))
        return {"type": tag, **({"fields": fields} if wraps_fields(type(value)) else fields)}
    if isinstance(value, tuple):
        return [_encode(item, (*path, i)) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        encoded = {k: _encode(v, (*path, Key(k))) for k, v in value.items()}
        return encoded if _TAGS.isdisjoint(encoded) else {"mapping": encoded}
    return {"function": _reference(value, path)}


def _reference(value: Any, path: Path) -> str:
    try:
        return function_reference(value)
    except ConfigError as error:
        raise ConfigError(
            error.what, where=format_path(path) or "the root", hint=error.hint
        ) from None
