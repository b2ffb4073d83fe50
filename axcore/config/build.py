"""`Configurable`: a class with a nested `Config`, and `Config.build`, which makes the thing.

A parent owns the wiring: it builds its children and fills in their REQUIRED fields. While a tree is
built, every field that nobody filled is gathered, and the root reports them all at once.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, Protocol, cast

from typing_extensions import TypeVar

from axcore.config.define import Origin, class_tag, config, field_defaults, field_names, origins_of
from axcore.config.paths import Path, format_path, walk, with_children
from axcore.config.render import config_html
from axcore.config.suggest import suggest_names
from axcore.config.values import OMITTED, REQUIRED, Mismatch, freeze, is_config
from axcore.errors import ConfigError


class _Frame:
    """One `build` in progress. Its path is looked up only if an error has to name it."""

    __slots__ = ("built", "cfg", "is_template", "missing", "occurrence", "parent", "template")

    def __init__(self, template: Any, parent: "_Frame | None") -> None:
        self.template = template
        self.cfg = template
        self.parent = parent
        self.missing: list[str] = parent.missing if parent else []
        self.is_template = False
        self.built: list[int] = []
        self.occurrence = 0
        if parent is not None:
            self.occurrence = parent.built.count(id(template))
            parent.built.append(id(template))

    @property
    def path(self) -> Path:
        """The path from the root that is built."""
        return (*self.parent.path, *self.parent._path_of(self)) if self.parent else ()

    def _path_of(self, child: "_Frame") -> Path:
        """Return the path of a child's config among this config's values.

        It is found by identity. One that is in several places is taken for the first that was
        not built before; one that the parent edited before it built it, for the only one of its
        class.
        """
        made = child.template
        nodes = [(path, node) for path, node in walk(self.template) if path and is_config(node)]
        places = [path for path, node in nodes if node is made]
        if not places:
            alike = [path for path, node in nodes if type(node) is type(made)]
            places = alike if len(alike) == 1 else [(f"<{type(made).__qualname__}>",)]
        return places[child.occurrence] if child.occurrence < len(places) else places[0]


_building: ContextVar[_Frame | None] = ContextVar("axcore_building", default=None)


class Unbuilt:
    """Replaces a child that could not be built while missing fields are gathered."""


Built_co = TypeVar("Built_co", covariant=True, default=Any)
Config_co = TypeVar("Config_co", covariant=True)


class Buildable(Generic[Built_co]):
    """Base of configs that describe a thing: `build` makes it.

    What it makes, in brackets, is for type checkers alone: `class Config(Module.Config["Layer"])`,
    and `linear: Module.Config[Linear]` for a slot that is called as a `Linear` is. A config that
    builds something else may still be put there.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, built: Any) -> Any:
            return cls  # an alias would not be a class: fields, tags and `isinstance` need one

    def build(self, **filled: Any) -> Built_co:
        """Make what this config describes.

        Args:
            **filled: Values for fields, as the parent's wiring. A field that already holds another
                value may not be filled.

        Raises:
            ConfigError: Listing every field of the full tree that nobody filled, with its path.
        """
        frame = _Frame(self, _building.get())
        frame.cfg = _fill(self, filled, frame)
        _note_missing(frame, filled)
        token = _building.set(frame)
        try:
            thing = frame.cfg._make()
        except Exception as error:
            if frame.parent is None and frame.missing:
                raise _missing_error(self, frame.missing) from None
            if frame.is_template:
                return cast(Built_co, Unbuilt())
            _note(error, frame)
            raise
        finally:
            _building.reset(token)
        if frame.parent is None and frame.missing:
            raise _missing_error(self, frame.missing)
        return cast(Built_co, thing)

    def _repr_html_(self) -> str:
        return config_html(self)

    def _make(self) -> Any:
        raise ConfigError(f"{type(self).__qualname__} describes nothing that can be built")


def _note_missing(frame: _Frame, filled: dict[str, Any]) -> None:
    for name in field_names(frame.cfg):
        if getattr(frame.cfg, name) is REQUIRED:
            frame.is_template = True
            if name not in filled:
                frame.missing.append(format_path((*frame.path, name)))


def _fill(cfg: Any, filled: dict[str, Any], frame: _Frame) -> Any:
    known = field_names(cfg)
    for name, value in filled.items():
        if name not in known:
            raise ConfigError(
                f"{type(cfg).__qualname__} has no field {name!r} for its parent to fill; "
                + suggest_names(name, known),
                where=format_path(frame.path) or class_tag(type(cfg)),
                hint=f"give {type(cfg).__qualname__} a field {name!r}, or use another config here",
            )
        held = getattr(cfg, name)
        if held is not REQUIRED and held != value:
            origin = origins_of(cfg).get(name)
            raise ConfigError(
                f"{name} is {held!r}, but the parent fills in {value!r}",
                where=format_path((*frame.path, name)),
                set_in=str(origin) if origin else None,
                hint=f"leave {name} unset, or set it to {value!r}",
            )
    changes = {name: value for name, value in filled.items() if getattr(cfg, name) is REQUIRED}
    if not changes:
        return cfg
    try:
        return with_children(cfg, changes, (), Origin("the parent's wiring"))
    except ConfigError as error:
        where = format_path((*frame.path, *changes) if len(changes) == 1 else frame.path)
        raise ConfigError(
            error.what, where=where or error.where, set_in=error.set_in, hint=error.hint
        ) from None


def _missing_error(cfg: Any, missing: list[str]) -> ConfigError:
    lines = "\n".join(f"  {path}" for path in dict.fromkeys(missing))
    first = missing[0]
    count = len(set(missing))
    fields = "field" if count == 1 else "fields"
    return ConfigError(
        f"{type(cfg).__qualname__} lacks {count} required {fields}:\n{lines}",
        hint=f"--set {first}=..., or update_config(cfg, {{{first!r}: ...}})",
    )


def _note(error: Exception, frame: _Frame) -> None:
    """Note once, at the innermost level, where in the tree an exception came from."""
    if not getattr(error, "__config_path__", None):
        where = format_path(frame.path)
        error.__config_path__ = where or "the root"  # type: ignore[attr-defined]
        if where:
            error.add_note(f"while building {where}")


class _Described(Protocol[Config_co]):
    @property
    def Config(self) -> type[Config_co]: ...  # noqa: N802 - the name of the nested class


class Configurable:
    """A class that is described by its nested `Config`.

    A subclass declares `@config class Config(Base.Config)`; one that declares none gets an empty
    one of its own, so that classes are distinct in a config tree.
    """

    @config
    class Config(Buildable[Built_co]):
        """Describes a `Configurable`."""

        def _make(self) -> Any:
            return owner_of(type(self))(self)

    def __init__(self, cfg: Any) -> None:
        self.__dict__["config"] = cfg

    if TYPE_CHECKING:  # `Config` is another class in each subclass, and no annotation can say so

        @property
        def config(self: "_Described[Config_co]") -> Config_co:
            """The config that it was built from, of its class's own `Config`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Config" not in cls.__dict__:
            cls.Config = _own_config(cls)  # type: ignore[misc]
        nested = cls.__dict__["Config"]
        if "__config_fields__" not in nested.__dict__:
            raise TypeError(f"{cls.__qualname__}.Config lacks the @config decorator")
        if not issubclass(nested, Buildable):
            raise TypeError(f"{cls.__qualname__}.Config does not inherit from its base's Config")
        nested.__config_owner__ = cls


def _own_config(cls: type[Configurable]) -> Any:
    base = cls.Config
    namespace = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config"}
    doc = base.__doc__
    return config(type("Config", (base,), {**namespace, "__doc__": doc}))


def owner_of(cls: type) -> Any:
    """Return the class that a config class describes, which is the one that it is nested in."""
    owner = cls.__dict__.get("__config_owner__")
    if owner is None:
        raise ConfigError(
            f"{cls.__qualname__} belongs to no class, so it cannot be built",
            hint="nest it in a Configurable or Module as `Config`",
        )
    return owner


Configurable.Config.__config_owner__ = Configurable  # type: ignore[attr-defined]


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
