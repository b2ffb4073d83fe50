"""`@config`: frozen, typed, hashable classes whose instances are values through and through.

A config remembers, outside of its value (equality and hash ignore it), where each field that
differs from its default was set. `origin_of` returns it, and errors show it as `set in:`.
"""

import contextlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, NoReturn, TypeVar, dataclass_transform

import attrs

from axcore.config.suggest import suggest_names
from axcore.config.values import (
    CONFIG_MARK,
    REQUIRED,
    Checker,
    Mismatch,
    checker,
    freeze,
    is_config,
)
from axcore.errors import ConfigError

T = TypeVar("T")

_REGISTRY: dict[str, type] = {}
_RESERVED = ("build",)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(attrs.field,))
def config(cls: type[T]) -> type[T]:
    """Make a class of configs: frozen, keyword-only, hashable, comparable and picklable.

    Every value is checked against its annotation when an instance is made. Lists become tuples
    and dicts become immutable mappings. A field that defaults to `REQUIRED` is somebody else's
    to fill in.

    Raises:
        ConfigError: On instantiation, listing every field whose value does not fit.
    """
    cls.__attrs_post_init__ = _freeze_and_check  # type: ignore[attr-defined]
    _freeze_defaults(cls)
    made = attrs.frozen(cls, kw_only=True, slots=False, cache_hash=True, repr=False)
    names = tuple(field.name for field in attrs.fields(made))  # type: ignore[arg-type]
    for name in names:
        if name in _RESERVED or name.startswith("_"):
            raise TypeError(f"{made.__qualname__}.{name}: the name is reserved; choose another")
    setattr(made, CONFIG_MARK, names)
    made.__setattr__ = _refuse_setting  # type: ignore[method-assign]
    made.__repr__ = _repr  # type: ignore[method-assign]
    made.__init__ = _checked_init(made, made.__init__)  # type: ignore[method-assign]
    _REGISTRY[class_tag(made)] = made
    return made


class FrozenConfigError(ConfigError, attrs.exceptions.FrozenInstanceError):
    """A field of a config was assigned to; configs never change."""


def _refuse_setting(self: Any, name: str, value: Any) -> NoReturn:
    known = field_names(self)
    hint = f"cfg = evolve(cfg, {name}=...) returns a changed one"
    raise FrozenConfigError(
        f"{type(self).__qualname__} is frozen: {name} cannot be set",
        where=class_tag(type(self)),
        hint=hint if name in known else suggest_names(name, known),
    )


def _freeze_defaults(cls: type) -> None:
    """Make values of mutable defaults, so that nobody who holds one can change later configs."""
    for name in inspect.get_annotations(cls):
        default = cls.__dict__.get(name)
        if isinstance(default, (list, tuple, typing.Mapping)):
            with contextlib.suppress(Mismatch):  # reported with all others when an instance is made
                setattr(cls, name, freeze(default))


def class_tag(cls: type) -> str:
    """Return the name a class is saved under: `module:Outer.Config`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def registered_class(tag: str) -> type | None:
    """Return the `@config` class of that tag, or None; imports nothing."""
    return _REGISTRY.get(tag)


def registered_tags() -> tuple[str, ...]:
    """Return the tags of all `@config` classes made so far."""
    return tuple(_REGISTRY)


def field_names(cfg: Any) -> tuple[str, ...]:
    """Return the field names of a config or a config class, in order."""
    names: tuple[str, ...] = getattr(cfg, CONFIG_MARK)
    return names


def moved_field(cls: type, name: str) -> str | None:
    """Return where a field is now that a class had once; None where it had no such field.

    A class lists them in `moved_fields`, so that an old config is refused with what to change.
    """
    owner = getattr(cls, "__config_owner__", cls)
    moved: dict[str, str] = getattr(owner, "moved_fields", {})
    return moved.get(name)


def unknown_field(cls: type, name: str) -> str:
    """Return what an error says about a field that a class does not have."""
    moved = moved_field(cls, name)
    hint = f"it is now {moved}" if moved else suggest_names(name, field_names(cls))
    return f"{cls.__qualname__} has no field {name!r}; {hint}"


def field_defaults(cls: type) -> dict[str, Any]:
    """Return each field's default; a field without one is absent."""
    cached: dict[str, Any] | None = cls.__dict__.get("__config_defaults__")
    if cached is None:
        cached = {
            field.name: _default(field)
            for field in attrs.fields(cls)
            if field.default is not attrs.NOTHING
        }
        type.__setattr__(cls, "__config_defaults__", cached)
    return cached


def field_annotations(cls: type) -> dict[str, Any]:
    """Return each field's annotation, resolved to real objects.

    Raises:
        ConfigError: An annotation names something that cannot be found or held in a config.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"an annotation of {cls.__qualname__} cannot be resolved: {error}",
            where=class_tag(cls),
            hint="define config classes at module level and leave out `from __future__ import "
            "annotations` in that file",
        ) from error
    return {name: hints[name] for name in field_names(cls)}


def _default(field: "attrs.Attribute[Any]") -> Any:
    default: Any = field.default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


class _Field(NamedTuple):
    """A field's name and check, its default, and what that is kept as (`_UNCHECKED` if unknown)."""

    name: str
    check: Checker
    default: Any
    frozen: Any


_UNCHECKED = object()


def _fields(cls: type) -> tuple[_Field, ...]:
    compiled: tuple[_Field, ...] | None = cls.__dict__.get("__config_checks__")
    if compiled is None:
        hints, defaults = field_annotations(cls), field_defaults(cls)
        try:
            checks = {name: checker(hints[name]) for name in hints}
        except TypeError as error:
            raise ConfigError(str(error), where=class_tag(cls)) from error
        compiled = tuple(
            _Field(name, check, default, _frozen_default(check, default))
            for name, check in checks.items()
            for default in [defaults.get(name, _UNCHECKED)]
        )
        type.__setattr__(cls, "__config_checks__", compiled)
    return compiled


def _frozen_default(check: Checker, default: Any) -> Any:
    if default is _UNCHECKED or default is REQUIRED:
        return default
    try:
        return check(default)
    except Mismatch:
        return _UNCHECKED  # reported with all others when an instance is made


def _freeze_and_check(self: Any) -> None:
    problems: list[tuple[str, Mismatch]] = []
    changed: list[str] = []
    own = self.__dict__
    for name, check, default, frozen in _fields(type(self)):
        value = own[name]
        if value is default:
            if frozen is not _UNCHECKED:
                own[name] = frozen
                continue
        else:
            changed.append(name)
            if value is REQUIRED:
                continue
        try:
            own[name] = check(value)
        except Mismatch as mismatch:
            problems.append((name, mismatch))
    if problems:
        raise _mismatch_error(type(self), problems)
    set_origins(self, dict.fromkeys(changed, calling_origin()) if changed else {})


def _mismatch_error(cls: type, problems: list[tuple[str, Mismatch]]) -> ConfigError:
    lines = [mismatch.describe(name) for name, mismatch in problems]
    return ConfigError("\n".join(lines), where=class_tag(cls), set_in=str(calling_origin()))


def _checked_init(cls: type, init: Any) -> Any:
    def __init__(self: Any, /, *args: Any, **values: Any) -> None:  # noqa: N807
        try:
            init(self, *args, **values)
        except TypeError as error:
            made = type(self)
            known = field_names(made)
            unknown = [name for name in values if name not in known]
            missing = [name for name in known if name not in {**field_defaults(made), **values}]
            if not (args or unknown or missing):
                raise
            lines = [
                *(f"{made.__qualname__} takes keyword arguments only" for _ in args[:1]),
                *(unknown_field(made, name) for name in unknown),
                *(f"{made.__qualname__} needs a value for {name!r}" for name in missing),
            ]
            raise ConfigError(
                "\n".join(lines), where=class_tag(made), set_in=str(calling_origin())
            ) from error

    __init__.__wrapped__ = init  # type: ignore[attr-defined]
    return __init__


def _repr(self: Any) -> str:
    defaults = field_defaults(type(self))
    shown = []
    for name in field_names(self):
        value = getattr(self, name)
        if name in defaults and (value is defaults[name] or value == defaults[name]):
            continue
        shown.append(f"{name}={_value_repr(value)}")
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _value_repr(value: Any) -> str:
    if isinstance(value, typing.Mapping):
        return "{" + ", ".join(f"{k!r}: {_value_repr(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_value_repr, value)) + ("," if len(value) == 1 else "") + ")"
    if callable(value) and not is_config(value) and value is not REQUIRED:
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', value)}"
    return repr(value)


_ORIGINS = "__config_origins__"


class Origin(NamedTuple):
    """Where a value was set: a function with file and line, or a named source such as a flag."""

    source: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source} ({_short(self.file)}:{self.line})" if self.file else self.source


def _short(file: str) -> str:
    """Return a source file's name from the folder that it is imported from."""
    roots = [root for root in sys.path if root and file.startswith(root.rstrip("/") + "/")]
    return file[len(max(roots, key=len).rstrip("/")) + 1 :] if roots else file


_given: ContextVar[Origin | None] = ContextVar("axcore_origin", default=None)


@contextlib.contextmanager
def setting_from(origin: Origin) -> Iterator[None]:
    """Make `origin` that of every value that is set while code runs."""
    token = _given.set(origin)
    try:
        yield
    finally:
        _given.reset(token)


def calling_origin() -> Origin:
    """Return the nearest caller outside of `axcore.config` and attrs' generated code."""
    given = _given.get()
    if given is not None:
        return given
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        generated = frame.f_code.co_filename.startswith("<attrs generated")
        if not generated and not name.startswith(("axcore.config.", "attr.", "attrs.")):
            break
        frame = frame.f_back
    code = frame.f_code
    return Origin(code.co_qualname, code.co_filename, frame.f_lineno)


def set_origins(cfg: Any, origins: dict[str, Origin]) -> None:
    """Attaches origins to a config that was just made."""
    object.__setattr__(cfg, _ORIGINS, origins)


def origins_of(cfg: Any) -> dict[str, Origin]:
    """Return the origin of every field of `cfg` itself that differs from its default."""
    found: dict[str, Origin] = getattr(cfg, _ORIGINS, {})
    return found


def carry_origins(new: Any, old: Any, changed: dict[str, Origin]) -> None:
    """Give `new` the origins of `old`, but for the fields in `changed`."""
    mine = origins_of(new)
    kept = {name: origin for name, origin in origins_of(old).items() if name in mine}
    mine.update(kept)
    mine.update({name: origin for name, origin in changed.items() if name in mine})


_ARGUMENT = re.compile(r"^ {4}(\w+)(?: \([^)]*\))?: (.*)$")


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """Return what the `Args:` of a class and of those it inherits from say about each field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _arguments(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
    return found


def _arguments(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    _, _, section = text.partition("\nArgs:\n")
    name = ""
    for line in section.splitlines():
        if line and not line.startswith("    "):
            break
        begins = _ARGUMENT.match(line)
        if begins:
            name = begins[1]
            found[name] = begins[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found
