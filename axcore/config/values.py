"""The values that a config can hold: checks of annotations, ranges, and `REQUIRED`."""

import collections.abc
import json
import math
import operator
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

from immutabledict import immutabledict

from axcore.errors import ConfigError


class Required:
    """The type of `REQUIRED`; it has one instance, equal to nothing but itself."""

    _instance: "Required | None" = None

    def __new__(cls) -> "Required":  # noqa: D102 - part of the class
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            "a REQUIRED field was used before anybody filled it in",
            hint="set the field, or let the parent fill it: cfg.child.build(field=value)",
        )

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __call__ = _refuse
    __getitem__ = __contains__ = _refuse


REQUIRED: Final[Any] = Required()
"""A value still to be filled in. Never `None`, and neither true nor false: using it raises."""


class Omitted:
    """The type of `OMITTED`."""

    def __repr__(self) -> str:
        return "OMITTED"

    def __reduce__(self) -> str:
        return "OMITTED"


OMITTED: Final = Omitted()
"""An argument that `config_for` does not pass, as its default is nothing that a config can hold."""


class Range(NamedTuple):
    """Which values of a type a field may hold.

    Args:
        text: What an error says after "expected".
        holds: Whether a value of the type is in the range.
    """

    text: str
    holds: Callable[[float], bool]


class FromText(NamedTuple):
    """How a text of the command line becomes a value of a field, in the field's annotation.

    Args:
        read: Returns the value that a text means; raises ConfigError for one that means none.
    """

    read: Callable[[str], Any]


PositiveInt = Annotated[int, Range("1 or more", lambda value: value >= 1)]
NonNegativeInt = Annotated[int, Range("0 or more", lambda value: value >= 0)]
PositiveFloat = Annotated[float, Range("a finite number above 0", lambda x: 0 < x < math.inf)]
NonNegativeFloat = Annotated[
    float, Range("a finite number of 0 or more", lambda x: 0 <= x < math.inf)
]
UnitInterval = Annotated[float, Range("0 to 1", lambda value: 0 <= value <= 1)]
Fraction = Annotated[float, Range("0 or more and less than 1", lambda value: 0 <= value < 1)]


Checker = Callable[[Any], Any]

MAX_INT_BITS = 4096
"""Python refuses to print much larger ints, so they could not be saved."""

_SURROGATE = re.compile("[\ud800-\udfff]")

CONFIG_MARK = "__config_fields__"
"""Attribute that every `@config` class carries: its field names, in order."""


class Mismatch(Exception):  # noqa: N818 - private to the package, turned into a ConfigError
    """A value does not fit its annotation; `inside` is where in the value, as `[0]["key"]`."""

    def __init__(self, expected: str, got: object, inside: str = "") -> None:
        super().__init__(expected, got, inside)
        self.expected = expected
        self.got = got
        self.inside = inside

    def within(self, step: str) -> "Mismatch":
        """Return the same mismatch seen from one container further out."""
        return type(self)(self.expected, self.got, step + self.inside)

    def describe(self, name: str) -> str:
        """Return what is wrong with the field of that name, as errors say it."""
        return (
            f"{name}{self.inside} is {_short(self.got)}; "
            f"expected {self.expected}, got {type(self.got).__qualname__}"
        )


class OutOfRange(Mismatch):
    """A value is of the right type, but not in the range of its field."""

    def describe(self, name: str) -> str:
        """Return what is wrong with the field of that name; its type is not."""
        return f"{name}{self.inside} is {_short(self.got)}; expected {self.expected}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of too many digits, or a cycle
        return f"a {type(value).__qualname__} that cannot be printed"
    return text if len(text) <= 80 else text[:77] + "..."


def is_config(value: object) -> bool:
    """Whether `value` is an instance of a `@config` class."""
    return hasattr(type(value), CONFIG_MARK)


def is_config_class(cls: object) -> bool:
    """Whether `cls` is a class made by `@config`."""
    return isinstance(cls, type) and hasattr(cls, CONFIG_MARK)


def type_name(annotation: object) -> str:
    """Return an annotation as a user would write it."""
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__qualname__
    if get_origin(annotation) is Annotated:
        return type_name(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(type_name(option) for option in get_args(annotation))
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def checker(annotation: Any) -> Checker:
    """Compile an annotation into its check. Raises TypeError for one that configs cannot hold."""
    if annotation is Any:
        return freeze
    if annotation is None or annotation is type(None):
        return _check_none
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin = get_origin(annotation)
    if type(annotation).__name__ == "TypeAliasType":  # `type X = ...`, Python 3.12
        return checker(annotation.__value__)
    if origin is Annotated:
        return _ranged(annotation)
    if origin in (Union, types.UnionType):
        return _union(annotation)
    if origin is Literal:
        return _literal(get_args(annotation))
    if origin is tuple:
        return _tuple(get_args(annotation))
    if origin in (collections.abc.Mapping, immutabledict, dict):
        return _mapping(get_args(annotation))
    if origin is collections.abc.Callable or annotation in (collections.abc.Callable, Callable):
        return _check_callable
    if annotation in (Mapping, dict, immutabledict):
        return _mapping((str, Any))
    if annotation is tuple:
        return _tuple((Any, ...))
    if is_config_class(annotation):
        return _instance(annotation)
    raise TypeError(
        f"a config field cannot be annotated {type_name(annotation)}; use scalars, str, Literal, "
        "tuple, Mapping[str, ...], Callable, other @config classes, and unions of these"
    )


def freeze(value: Any) -> Any:
    """Return any config value in its frozen form. Raises Mismatch for what configs cannot hold."""
    if value is None or isinstance(value, bool):
        return value
    for kind, check in _SCALARS.items():
        if isinstance(value, kind):
            return check(value)
    if is_config(value) or value is REQUIRED or value is OMITTED:
        return value
    if isinstance(value, (tuple, list)):
        return _FREEZE_TUPLE(value)
    if isinstance(value, Mapping):
        return _FREEZE_MAPPING(value)
    if callable(value):
        return _check_callable(value)
    raise Mismatch("a config value (scalar, str, tuple, mapping, config or function)", value)


def _check_none(value: Any) -> Any:
    if value is None:
        return value
    raise Mismatch("None", value)


def _check_bool(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    raise Mismatch("bool", value)


def _check_int(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Mismatch("int", value)
    if value.bit_length() > MAX_INT_BITS:
        raise Mismatch(f"an int of at most {MAX_INT_BITS} bits", value)
    return value if type(value) is int else int(value)


def _check_float(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            raise Mismatch("a number (nan equals nothing, so a config cannot hold it)", value)
        if value == 0.0:
            return value if type(value) is float and not _is_negative(value) else 0.0
        return value if type(value) is float else float(value)
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if is_int and value.bit_length() < 1024 and float(value) == value:
        return float(value)
    raise Mismatch("float", value)


def _is_negative(value: float) -> bool:
    return math.copysign(1.0, value) < 0


def _check_str(value: Any) -> Any:
    if not isinstance(value, str):
        raise Mismatch("str", value)
    if not value.isascii() and _SURROGATE.search(value):
        raise OutOfRange("text that UTF-8 can hold, without halves of surrogate pairs", value)
    return value if type(value) is str else str.__str__(value)


def _check_callable(value: Any) -> Any:
    is_named = hasattr(value, "__qualname__") and hasattr(value, "__module__")
    if callable(value) and is_named and value is not REQUIRED:
        return value
    raise Mismatch("a function or class (a call of one is config_for(fn, ...))", value)


_SCALARS: dict[Any, Checker] = {
    bool: _check_bool,
    int: _check_int,
    float: _check_float,
    str: _check_str,
}


def _instance(cls: type) -> Checker:
    expected = type_name(cls)

    def check(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        raise Mismatch(expected, value)

    return check


def _ranged(annotation: Any) -> Checker:
    base, *metadata = get_args(annotation)
    check_type = checker(base)
    ranges = [item for item in metadata if isinstance(item, Range)]

    def check(value: Any) -> Any:
        value = check_type(value)
        for one in ranges:
            if not one.holds(value):
                raise OutOfRange(one.text, value)
        return value

    return check


def _literal(allowed: tuple[Any, ...]) -> Checker:
    expected = "one of " + ", ".join(repr(item) for item in allowed)
    known = {(type(item), item) for item in allowed}
    kinds = {type(item) for item in allowed}

    def check(value: Any) -> Any:
        if type(value) in kinds and (type(value), value) in known:
            return value
        raise Mismatch(expected, value)

    return check


def _union(annotation: Any) -> Checker:
    options = [checker(option) for option in get_args(annotation)]
    exact = {kind: check for kind, check in _SCALARS.items() if kind in get_args(annotation)}
    expected = type_name(annotation)

    allows_none = type(None) in get_args(annotation)

    def check(value: Any) -> Any:
        if value is None and allows_none:
            return value
        if type(value) in exact:  # an int stays one in `float | int`
            return exact[type(value)](value)
        inner: Mismatch | None = None
        for option in options:
            try:
                return option(value)
            except Mismatch as mismatch:
                is_near = mismatch.inside or isinstance(mismatch, OutOfRange)
                inner = mismatch if is_near else inner
        raise inner or Mismatch(expected, value)

    return check


def _tuple(args: tuple[Any, ...]) -> Checker:
    if len(args) == 2 and args[1] is Ellipsis:
        each = None if args[0] is Any else checker(args[0])

        def check_all(value: Any) -> Any:
            if not isinstance(value, (tuple, list)):
                raise Mismatch(f"tuple of {type_name(args[0])}", value)
            return _same_tuple(
                value, [_at(each or freeze, item, f"[{i}]") for i, item in enumerate(value)]
            )

        return check_all

    checks = [checker(arg) for arg in args]

    def check_each(value: Any) -> Any:
        if not isinstance(value, (tuple, list)) or len(value) != len(checks):
            raise Mismatch(f"tuple of {len(checks)}", value)
        pairs = zip(checks, value, strict=True)
        return _same_tuple(
            value, [_at(check, item, f"[{i}]") for i, (check, item) in enumerate(pairs)]
        )

    return check_each


def _same_tuple(value: Any, items: list[Any]) -> tuple[Any, ...]:
    """Return the items as a tuple, which is `value` itself where it contains just these."""
    is_same = type(value) is tuple and all(map(operator.is_, value, items))
    return value if is_same else tuple(items)


def _mapping(args: tuple[Any, ...]) -> Checker:
    key_type, value_type = args or (str, Any)
    if key_type is not str:
        raise TypeError(f"a mapping in a config has str keys, not {type_name(key_type)}")
    each = checker(value_type)

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Mismatch(f"mapping of str to {type_name(value_type)}", value)
        for key in value:
            if not isinstance(key, str):
                raise Mismatch("str as a mapping's key", key)
        items = {
            _check_str(key): _at(each, value[key], f"[{json.dumps(key)}]") for key in sorted(value)
        }
        is_same = (
            type(value) is immutabledict
            and list(value) == list(items)
            and all(map(operator.is_, value.values(), items.values()))
        )
        return value if is_same else immutabledict(items)

    return check


_FREEZE_TUPLE = _tuple((Any, ...))
_FREEZE_MAPPING = _mapping((str, Any))


def _at(check: Checker, value: Any, step: str) -> Any:
    if value is REQUIRED:
        return value
    try:
        return check(value)
    except Mismatch as mismatch:
        raise mismatch.within(step) from None
