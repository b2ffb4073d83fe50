"""Configs as JSON and YAML, through cattrs, with an exact round trip.

A config is a mapping with its class under `type`; a call of another library's function has the
function under `call`; a function is `{"function": "module:name"}`. Loading runs nothing: a name
is looked up among the registered config classes and, inside of trusted packages only, imported.
"""

import hashlib
import importlib
import json
from collections.abc import Mapping
from typing import Any

from axcore.config.call import CallConfig, call_target, config_for, function_reference
from axcore.config.define import (
    class_tag,
    field_defaults,
    field_names,
    registered_class,
    registered_tags,
)
from axcore.config.paths import Key, Path, format_path
from axcore.config.provenance import Origin, set_origins
from axcore.config.required import REQUIRED
from axcore.config.suggest import name_the_known
from axcore.config.values import is_config
from axcore.errors import ConfigError

MAX_DEPTH = 200
"""Nesting deeper than this is refused when a config is loaded."""

_TAGS = ("type", "call", "function", "required", "mapping")
_trusted: set[str] = {"axcore", "optax"}


def trust_package(name: str) -> None:
    """Allows files to name config classes and functions of a package; plugins' are by the host."""
    _trusted.add(name)


def to_dict(cfg: Any) -> dict[str, Any]:
    """Returns a config as plain dicts, lists and scalars.

    Raises:
        ConfigError: It holds a lambda or local function, which has no name to save.
    """
    data: dict[str, Any] = _encode(cfg, ())
    return data


def from_dict(data: Any, *, set_in: str = "a dict") -> Any:
    """Returns the config that `to_dict` made the data from.

    Raises:
        ConfigError: The data names an unknown class or field, a value does not fit, the nesting is
            too deep or a function is not one that files may name. Nothing was imported or run.
    """
    _check_depth(data)
    cfg = _decode(data, (), set_in)
    if not is_config(cfg):
        raise ConfigError(
            f"the top level is a {type(data).__name__}, not a config",
            mend='add "type": "module:Class.Config"',
        )
    return cfg


def to_json(cfg: Any) -> str:
    """Returns a config as indented JSON."""
    from cattrs.preconf.json import make_converter

    return make_converter().dumps(to_dict(cfg), indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, *, set_in: str = "JSON") -> Any:
    """Returns the config in a JSON text; raises ConfigError as `from_dict` does."""
    from cattrs.preconf.json import make_converter

    try:
        data = make_converter().loads(text, Any, object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", set_in=set_in) from error
    return from_dict(data, set_in=set_in)


def to_yaml(cfg: Any) -> str:
    """Returns a config as YAML."""
    import yaml

    return yaml.safe_dump(to_dict(cfg), sort_keys=False, allow_unicode=True)


def from_yaml(text: str, *, set_in: str = "YAML") -> Any:
    """Returns the config in a YAML text; raises ConfigError as `from_dict` does."""
    from axcore.config.yaml_text import load_yaml

    return from_dict(load_yaml(text, set_in), set_in=set_in)


def digest(cfg: Any) -> str:
    """Returns a short stable fingerprint of a config's value."""
    canonical = json.dumps(to_dict(cfg), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _encode(value: Any, path: Path) -> Any:
    if value is REQUIRED:
        return {"required": True}
    if isinstance(value, CallConfig):
        return {"call": function_reference(call_target(type(value))), **_call_fields(value, path)}
    if is_config(value):
        fields = {n: _encode(getattr(value, n), (*path, n)) for n in field_names(value)}
        clash = next((name for name in fields if name in _TAGS), None)
        return {"type": class_tag(type(value)), **({"fields": fields} if clash else fields)}
    if isinstance(value, tuple):
        return [_encode(item, (*path, i)) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        encoded = {k: _encode(v, (*path, Key(k))) for k, v in value.items()}
        return {"mapping": encoded} if any(tag in encoded for tag in _TAGS) else encoded
    if callable(value):
        return {"function": _reference_at(value, path)}
    return value


def _call_fields(value: Any, path: Path) -> dict[str, Any]:
    defaults = field_defaults(type(value))
    fields = {n: getattr(value, n) for n in field_names(value)}
    set_fields = {n: v for n, v in fields.items() if n not in defaults or v is not defaults[n]}
    return {"fields": {n: _encode(v, (*path, n)) for n, v in set_fields.items()}}


def _reference_at(value: Any, path: Path) -> str:
    try:
        return function_reference(value)
    except ConfigError as error:
        raise ConfigError(error.what, where=format_path(path), mend=error.mend) from None


def _decode(data: Any, path: Path, set_in: str) -> Any:
    if isinstance(data, list):
        return tuple(_decode(item, (*path, i), set_in) for i, item in enumerate(data))
    if not isinstance(data, dict):
        return data
    for key in data:
        if not isinstance(key, str):
            raise ConfigError(f"{key!r} is no key; keys are text", where=format_path(path))
    if data.get("required") is True and len(data) == 1:
        return REQUIRED
    if "type" in data:
        return _decode_config(data, path, set_in)
    if "call" in data:
        return _decode_call(data, path, set_in)
    if "function" in data and len(data) == 1:
        return _function(data["function"], path, set_in)
    if "mapping" in data and len(data) == 1 and isinstance(data["mapping"], dict):
        data = data["mapping"]
    return {key: _decode(item, (*path, Key(key)), set_in) for key, item in data.items()}


def _decode_config(data: dict[str, Any], path: Path, set_in: str) -> Any:
    cls = _class_of(data["type"], path, set_in)
    fields = data.get("fields") if "fields" not in field_names(cls) and "fields" in data else None
    if fields is None:
        fields = {key: item for key, item in data.items() if key != "type"}
    return _make(cls, fields, path, set_in)


def _decode_call(data: dict[str, Any], path: Path, set_in: str) -> Any:
    fields = data.get("fields", {})
    if set(data) - {"call", "fields"} or not isinstance(fields, dict):
        raise ConfigError(
            "a call has `call` and `fields` only", where=format_path(path), set_in=set_in
        )
    fn = _function(data["call"], path, set_in)
    return _make(type(_called_template(fn, path)), fields, path, set_in)


def _called_template(fn: Any, path: Path) -> Any:
    try:
        return config_for(fn)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{fn!r} is no function to call: {error}", where=format_path(path)
        ) from error


def _make(cls: Any, fields: Any, path: Path, set_in: str) -> Any:
    if not isinstance(fields, dict):
        raise ConfigError(f"fields is {fields!r}; expected a mapping", where=format_path(path))
    known = field_names(cls)
    unknown = [str(name) for name in fields if name not in known]
    if unknown:
        raise ConfigError(
            f"{cls.__qualname__} has no field {unknown[0]!r}; {name_the_known(unknown[0], known)}",
            where=format_path((*path, unknown[0])),
            set_in=set_in,
        )
    values = {name: _decode(item, (*path, name), set_in) for name, item in fields.items()}
    try:
        cfg = cls(**values)
    except ConfigError as error:
        raise ConfigError(
            error.what, where=format_path(path) or "the root", set_in=set_in
        ) from None
    except TypeError as error:
        raise ConfigError(
            str(error), where=format_path(path) or "the root", set_in=set_in
        ) from None
    origins = dict.fromkeys(getattr(cfg, "__config_origins__", {}), Origin(set_in))
    set_origins(cfg, origins)
    return cfg


def _class_of(tag: Any, path: Path, set_in: str) -> type:
    if not isinstance(tag, str):
        raise ConfigError(f"type is {tag!r}; expected text", where=format_path(path), set_in=set_in)
    cls = registered_class(tag)
    if cls is None and _import_trusted(tag):
        cls = registered_class(tag)
    if cls is None or issubclass(cls, CallConfig):
        raise ConfigError(
            f"no config class {tag!r} is registered",
            where=format_path(path) or "the root",
            set_in=set_in,
            mend=name_the_known(tag, registered_tags(), most=4)
            + " (import or install what defines it)",
        )
    return cls


def _function(reference: Any, path: Path, set_in: str) -> Any:
    if isinstance(reference, str) and reference.count(":") == 1 and _import_trusted(reference):
        module, name = reference.split(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = vars(found)[part] if isinstance(found, type) else getattr(found, part)
                _check_stays_inside(found, module)
            if callable(found):
                return found
        except (AttributeError, KeyError):
            pass
    raise ConfigError(
        f"{reference!r} is no function that a config file may name",
        where=format_path(path) or "the root",
        set_in=set_in,
        mend=f"files may name functions of {', '.join(sorted(_trusted))} and of installed plugins",
    )


def _check_stays_inside(found: Any, module: str) -> None:
    """Refuses to reach other packages through a trusted one's own imports."""
    home = getattr(found, "__module__", None)
    if not isinstance(home, str) or home.split(".")[0] != module.split(".")[0]:
        raise AttributeError(home)


def _import_trusted(reference: str) -> bool:
    """Imports the module of a reference where its package is trusted; says whether it did."""
    module = reference.split(":")[0]
    parts = module.split(".")
    if parts[0] not in _trusted or not all(part.isidentifier() for part in parts):
        return False
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return True


def _check_depth(data: Any) -> None:
    level = [data]
    seen: set[int] = set()
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, (dict, list)) and id(item) not in seen:
                seen.add(id(item))
                below.extend(item.values() if isinstance(item, dict) else item)
        if not below:
            _check_no_cycle(data, ())
            return
        level = below
    raise _too_deep()


def _check_no_cycle(data: Any, above: tuple[int, ...]) -> None:
    if not isinstance(data, (dict, list)):
        return
    if id(data) in above:
        raise ConfigError("the data holds itself (a cycle)", mend="write the repeated part out")
    if len(above) > MAX_DEPTH:
        raise _too_deep()
    for item in data.values() if isinstance(data, dict) else data:
        _check_no_cycle(item, (*above, id(data)))


def _too_deep() -> ConfigError:
    return ConfigError(
        f"nested deeper than {MAX_DEPTH} levels", mend="no config is that deep; check the file"
    )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise ConfigError(
                f"the key {key!r} stands twice in one mapping", mend="keep one of them"
            )
        data[key] = value
    return data
