"""From plain data to a config: every class, field and value checked, nothing run."""

from typing import Any

from axcore.config.call import config_for
from axcore.config.define import field_names, unknown_field
from axcore.config.encode import MAX_DEPTH, wraps_fields
from axcore.config.paths import Key, Path, format_path
from axcore.config.provenance import Origin, setting_from
from axcore.config.required import REQUIRED
from axcore.config.trust import class_named, function_named
from axcore.config.values import is_config
from axcore.errors import ConfigError

MAX_VALUES = 200_000
"""A file that says more than this, its aliases written out, is refused."""

MAX_CHARACTERS = 1 << 20
"""A text that is longer is refused unread; a megabyte of YAML takes seconds to parse."""

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
    """Refuse data that nests too deep, holds itself, or grows too large with aliases followed."""
    count = 0
    entered: list[int] = []  # ids of the containers around the one that is looked at
    stack: list[tuple[int, Any]] = [(0, data)] if isinstance(data, _CONTAINERS) else []
    while stack:
        depth, value = stack.pop()
        del entered[depth:]
        if id(value) in entered:
            raise ConfigError(
                "the data holds itself (a cycle)", set_in=set_in, hint="write the repeated part out"
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


def check_length(text: str | bytes, set_in: str) -> None:
    """Refuse a text longer than any config is."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"the text is longer than {MAX_CHARACTERS >> 10} KiB",
            set_in=set_in,
            hint="no config is that long; check the file",
        )


def too_deep(set_in: str) -> ConfigError:
    """Return the error of data that nests deeper than any config does."""
    return ConfigError(
        f"nested deeper than {MAX_DEPTH} levels",
        set_in=set_in,
        hint="no config is that deep; check the file",
    )


def _where(path: Path) -> str:
    return format_path(path) or "the root"
