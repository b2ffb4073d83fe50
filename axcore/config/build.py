"""`Configurable`: a class with a nested `Config`, and `Config.build`, which makes the thing.

A parent owns the wiring: it builds its children and fills in their REQUIRED fields. While a tree is
built, every field that nobody filled is gathered, and the root reports them all at once.
"""

from contextvars import ContextVar
from typing import Any, Generic, cast

from typing_extensions import TypeVar

from axcore.config.config_html import config_html
from axcore.config.define import class_tag, config, field_names
from axcore.config.paths import Path, format_path
from axcore.config.provenance import Origin, origins_of
from axcore.config.required import REQUIRED
from axcore.config.suggest import suggest_names
from axcore.config.traverse import walk, with_children
from axcore.config.values import is_config
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


class Buildable(Generic[Built_co]):
    """Base of configs that describe a thing: `build` makes it."""

    def build(self, **filled: Any) -> Built_co:
        """Make what this config describes.

        Args:
            **filled: Values for fields, as the parent's wiring. A field that already holds another
                value may not be filled.

        Raises:
            ConfigError: Listing every field of the whole tree that nobody filled, with its path.
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

    config: Any

    def __init__(self, cfg: Any) -> None:
        self.config = cfg

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
