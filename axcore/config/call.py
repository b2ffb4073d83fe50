"""`config_for`: a config of a call to any function or class of another library."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import attrs

from axcore.config.build import Buildable
from axcore.config.define import config, field_defaults, field_names
from axcore.config.required import REQUIRED
from axcore.config.values import Mismatch, freeze, is_config
from axcore.errors import ConfigError


@config
class CallConfig(Buildable):
    """Base of the configs that `config_for` makes: the fields are the call's parameters.

    Nested configs are built before the call. Fields left at the function's own defaults are not
    passed.
    """

    def _make(self) -> Any:
        fn = call_target(type(self))
        defaults = field_defaults(type(self))
        values = {name: getattr(self, name) for name in field_names(self)}
        return fn(
            **{
                name: _built(value)
                for name, value in values.items()
                if name not in defaults or value is not defaults[name]
            }
        )


def config_for(fn: Callable[..., Any], /, **values: Any) -> Any:
    """Returns a config of the call `fn(**values)`.

    Parameters without a default are REQUIRED. Values are not checked against the function's
    annotations, which belong to another library.

    Raises:
        ConfigError: `fn` has no parameter of that name, or cannot be named as `module:name`.
    """
    return _config_class(fn)(**values)


def call_target(cls: type) -> Callable[..., Any]:
    """Returns the function that a `config_for` class calls."""
    fn: Callable[..., Any] = cls.__dict__["__config_call__"][0]
    return fn


def function_reference(fn: Any) -> str:
    """Returns `module:name` of a function or class.

    Raises:
        ConfigError: It is a lambda or a local, which no name reaches.
    """
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not module or not name or "<" in name or not _reaches(module, name, fn):
        raise ConfigError(
            f"{fn!r} cannot be named as module:name",
            mend="define it at the top level of a module",
        )
    return f"{module}:{name}"


def _reaches(module: str, name: str, fn: Any) -> bool:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return found is fn


@functools.cache
def _config_class(fn: Callable[..., Any]) -> type:
    reference = function_reference(fn)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"{reference} takes {parameter.name!r} by position only",
                mend="wrap it in a function that takes keywords",
            )
        fields[parameter.name] = _default_of(parameter)
    namespace = {
        "__module__": reference.split(":")[0],
        "__qualname__": reference.split(":")[1],
        "__annotations__": dict.fromkeys(fields, Any),
        "__doc__": f"A call of `{reference}`.",
        "__config_call__": (fn,),
        "__reduce__": _reduce,
        **fields,
    }
    return config(type(fn.__qualname__, (CallConfig,), namespace))


def _default_of(parameter: inspect.Parameter) -> Any:
    if parameter.default is inspect.Parameter.empty:
        return REQUIRED
    try:
        return freeze(parameter.default)
    except Mismatch:
        return None


def _reduce(self: Any) -> tuple[Any, ...]:
    values = {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}
    return _rebuild, (call_target(type(self)), values)


def _rebuild(fn: Callable[..., Any], values: dict[str, Any]) -> Any:
    return config_for(fn, **values)


def _built(value: Any) -> Any:
    if is_config(value):
        return value.build()
    if isinstance(value, tuple):
        return tuple(_built(item) for item in value)
    return value
