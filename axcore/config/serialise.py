"""Configs as plain data, JSON and YAML, and back."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from axcore.config.build import CallConfig, call_target, config_for, function_reference, set_fields
from axcore.config.define import Origin, class_tag, field_names, setting_from, unknown_field
from axcore.config.edit import matching_paths, update_config
from axcore.config.json_files import MAX_DEPTH, JsonDepthError, check_length, parse_json, too_deep
from axcore.config.paths import Key, Path, format_path, parse_pattern, walk
from axcore.config.trust import class_named, function_named
from axcore.config.values import REQUIRED, is_config
from axcore.errors import ConfigError

if TYPE_CHECKING:
    from cattrs.preconf.json import JsonConverter


def to_json(cfg: Any) -> str:
    """Return a config as indented JSON."""
    plain = {"unstructure_as": object}  # to_dict left nothing to take apart
    return _converter().dumps(to_dict(cfg), **plain, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, *, set_in: str = "JSON") -> Any:
    """Return the config in a JSON text; raises ConfigError as `from_dict` does."""
    return from_dict(load_json(text, set_in), set_in=set_in)


def load_json(text: str, set_in: str) -> Any:
    """Return the plain data in a JSON text.

    Raises:
        ConfigError: It is not JSON, is empty, or contains a key twice.
    """
    check_length(text, set_in)
    if not text.strip():
        raise empty_text(set_in)
    try:
        return parse_json(text)
    except JsonDepthError:
        raise too_deep(set_in) from None
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", set_in=set_in) from None


@functools.cache
def _converter() -> "JsonConverter":
    from cattrs.preconf.json import make_converter

    return make_converter()


def to_yaml(cfg: Any) -> str:
    """Return a config as YAML."""
    from axcore.config.yaml_text import dump_yaml

    return dump_yaml(to_dict(cfg))


def from_yaml(text: str, *, set_in: str = "YAML") -> Any:
    """Return the config in a YAML text; raises ConfigError as `from_dict` does."""
    from axcore.config.yaml_text import load_yaml

    return from_dict(load_yaml(text, set_in), set_in=set_in)


def digest(cfg: Any) -> str:
    """Return a short stable fingerprint of a config's value."""
    canonical = json.dumps(to_dict(cfg), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


_TAGS = frozenset(("type", "call", "function", "required", "mapping", "fields"))


def to_dict(cfg: Any) -> dict[str, Any]:
    """Return a config as plain dicts, lists and scalars.

    Raises:
        ConfigError: It contains a lambda or local function, which has no name to save, or nests too
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


MAX_VALUES = 200_000
"""A file that says more than this, its aliases written out, is refused."""

_CONTAINERS = (dict, list, tuple)


def from_dict(data: Any, *, set_in: str = "a dict") -> Any:
    """Return the config that `to_dict` made the data from.

    Args:
        data: Plain dicts, lists and scalars.
        set_in: Where they come from, for provenance and errors.

    Raises:
        ConfigError: The data names an unknown class or field, a value does not fit, the nesting is
            too deep or a function is not one that files may name. Nothing was run, and nothing
            imported but modules of trusted packages.
    """
    _check_shape(data, set_in)
    with setting_from(Origin(set_in)):
        cfg = _decode(data, (), set_in)
    if data is None:
        raise empty_text(set_in)
    if not is_config(cfg):
        raise ConfigError(
            f"the top level is a {type(data).__name__}, not a config",
            set_in=set_in,
            hint="add type: module:Class.Config"
            if _is_yaml(set_in)
            else 'add "type": "module:Class.Config"',
        )
    return cfg


def decode_value(data: Any, set_in: str) -> Any:
    """Return the value of plain data: a config where it has a type, containers and scalars."""
    _check_shape(data, set_in)
    with setting_from(Origin(set_in)):
        return _decode(data, (), set_in)


def _decode(data: Any, path: Path, set_in: str) -> Any:
    if not isinstance(data, _CONTAINERS):
        return data
    if not isinstance(data, dict):
        return tuple(_decode(item, (*path, i), set_in) for i, item in enumerate(data))
    if "type" in data:
        return _decode_config(data, path, set_in)
    for key in data:
        if not isinstance(key, str):
            raise ConfigError(f"keys are text, got {key!r}", where=_where(path), set_in=set_in)
    if data.get("required") is True and len(data) == 1:
        return REQUIRED
    if "call" in data:
        return _decode_call(data, path, set_in)
    if "function" in data and len(data) == 1:
        return function_named(data["function"], path, set_in)
    if "mapping" in data and len(data) == 1 and isinstance(data["mapping"], dict):
        data = data["mapping"]
    return {key: _decode(item, (*path, Key(key)), set_in) for key, item in data.items()}


def _decode_config(data: dict[str, Any], path: Path, set_in: str) -> Any:
    cls = class_named(data["type"], path, set_in)
    if not wraps_fields(cls):
        return _make(cls, {key: item for key, item in data.items() if key != "type"}, path, set_in)
    if set(data) - {"type", "fields"}:
        raise ConfigError(
            f"{cls.__qualname__} has `type` and `fields` only, as some field is named like a tag",
            where=_where(path),
            set_in=set_in,
        )
    return _make(cls, data.get("fields", {}), path, set_in)


def _decode_call(data: dict[str, Any], path: Path, set_in: str) -> Any:
    if set(data) - {"call", "fields"}:
        raise ConfigError("a call has `call` and `fields` only", where=_where(path), set_in=set_in)
    fn = function_named(data["call"], path, set_in)
    try:
        cls = type(config_for(fn))
    except ConfigError as error:
        raise ConfigError(error.what, where=_where(path), set_in=set_in) from None
    return _make(cls, data.get("fields", {}), path, set_in)


def _make(cls: Any, fields: Any, path: Path, set_in: str) -> Any:
    if not isinstance(fields, dict):
        raise ConfigError(
            f"fields is {fields!r}; expected a mapping", where=_where(path), set_in=set_in
        )
    known = field_names(cls)
    unknown = [str(name) for name in fields if name not in known]
    if unknown:
        raise ConfigError(
            "\n".join(unknown_field(cls, name) for name in unknown),
            where=_where(path),
            set_in=set_in,
        )
    values = {
        name: _decode(item, (*path, name), set_in) if isinstance(item, _CONTAINERS) else item
        for name, item in fields.items()
    }
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(error.what, where=_where(path), set_in=set_in) from None


def _check_shape(data: Any, set_in: str) -> None:
    """Refuse data that nests too deep, holds itself, or grow too large with aliases followed."""
    count = 0
    entered: list[int] = []  # ids of the containers around the one that is looked at
    stack: list[tuple[int, Any]] = [(0, data)] if isinstance(data, _CONTAINERS) else []
    while stack:
        depth, value = stack.pop()
        del entered[depth:]
        if id(value) in entered:
            raise ConfigError(
                "the data contains itself (a cycle)",
                set_in=set_in,
                hint="write the repeated part out",
            )
        if depth >= MAX_DEPTH:
            raise too_deep(set_in)
        entered.append(id(value))
        below = value.values() if isinstance(value, dict) else value
        count += len(below)
        if count > MAX_VALUES:
            raise ConfigError(
                f"more than {MAX_VALUES} values, aliases followed",
                set_in=set_in,
                hint="no config is that large; check the file",
            )
        stack += [(depth + 1, item) for item in below if isinstance(item, _CONTAINERS)]


def empty_text(set_in: str) -> ConfigError:
    """Return the error of a file that says nothing."""
    return ConfigError(
        "there is no config: nothing is written there",
        set_in=set_in,
        hint="begin with one that works: axcore config show tiny --format "
        f"{'yaml' if _is_yaml(set_in) else 'json'} > FILE",
    )


def _is_yaml(set_in: str) -> bool:
    return set_in.lower().endswith(("yaml", "yml"))


def _where(path: Path) -> str:
    return format_path(path) or "the root"


C = TypeVar("C")

_VALUE_TAGS = frozenset(("type", "call", "function", "required", "mapping"))
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
        is_nested = isinstance(value, Mapping) and _VALUE_TAGS.isdisjoint(value)
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
