"""`config_for`: a config of a call to any function or class of another library."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from axcore.config.build import Buildable
from axcore.config.define import config, field_defaults, field_names
from axcore.config.required import OMITTED, REQUIRED
from axcore.config.values import Mismatch, freeze, is_config
from axcore.errors import ConfigError


@config
class CallConfig(Buildable):
    """Base of the configs that `config_for` makes: the fields are the call's parameters.

    Nested configs are built before the call. Fields left at the function's own defaults are not
    passed.
    """

    def _make(self) -> Any:
        return call_target(type(self))(**call_arguments(self))


def config_for(fn: Callable[..., Any], /, **values: Any) -> Any:
    """Return a config of the call `fn(**values)`.

    Parameters without a default are REQUIRED. Values are not checked against the function's
    annotations, which belong to another library.

    Raises:
        ConfigError: `fn` has no parameter of that name, or cannot be named as `module:name`.
    """
    return _config_class(fn)(**values)


def call_arguments(cfg: CallConfig) -> dict[str, Any]:
    """Return the arguments that a call passes, nested configs built."""
    return {name: _built(value) for name, value in set_fields(cfg).items()}


def set_fields(cfg: CallConfig) -> dict[str, Any]:
    """Return the fields that differ from the function's own defaults."""
    defaults = field_defaults(type(cfg))
    values = {name: getattr(cfg, name) for name in field_names(cfg)}
    return {n: v for n, v in values.items() if n not in defaults or v is not defaults[n]}


def call_target(cls: type) -> Callable[..., Any]:
    """Return the function that a `config_for` class calls."""
    fn: Callable[..., Any] = cls.__dict__["__config_call__"][0]
    return fn


def function_reference(fn: Any) -> str:
    """Return `module:name` of a function or class, by the outermost package that exports it.

    Raises:
        ConfigError: It is a lambda or a local, which no name reaches.
    """
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if module and name and "<" not in name:
        parts = module.split(".")
        for i in range(1, len(parts) + 1):
            package = ".".join(parts[:i])
            if _reaches(package, name, fn):
                return f"{package}:{name}"
    raise ConfigError(
        f"{fn!r} cannot be named as module:name",
        hint="define it at the top level of a module",
    )


def _reaches(module: str, name: str, fn: Any) -> bool:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is fn


@functools.cache
def _config_class(fn: Callable[..., Any]) -> type:
    reference = function_reference(fn)
    fields: dict[str, Any] = {}
    for parameter in _parameters(fn, reference):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"{reference} takes {parameter.name!r} by position only",
                hint="wrap it in a function that takes keywords",
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
    try:
        return config(type(fn.__qualname__, (CallConfig,), namespace))
    except TypeError as error:
        raise ConfigError(
            f"{reference} has a parameter that is not a name for a field: {error}",
            hint="wrap it in a function that names it otherwise",
        ) from error


def _parameters(fn: Callable[..., Any], reference: str) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(fn).parameters.values())
        tells_nothing = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found)
        if isinstance(fn, type) and found and tells_nothing:  # made by a metaclass's __call__
            init: Any = fn.__init__  # type: ignore[misc]
            found = list(inspect.signature(init).parameters.values())[1:]
        return found
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{reference} does not show its parameters",
            hint="wrap it in a function that takes keywords",
        ) from error


def _default_of(parameter: inspect.Parameter) -> Any:
    if parameter.default is inspect.Parameter.empty:
        return REQUIRED
    try:
        return freeze(parameter.default)
    except Mismatch:
        return OMITTED


def _reduce(self: CallConfig) -> tuple[Any, ...]:
    return _rebuild, (call_target(type(self)), set_fields(self))


def _rebuild(fn: Callable[..., Any], values: dict[str, Any]) -> Any:
    return config_for(fn, **values)


def _built(value: Any) -> Any:
    if is_config(value):
        return value.build()
    if isinstance(value, tuple):
        return tuple(_built(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _built(item) for key, item in value.items()}
    return value
