"""The checks that fields of records pass: name, expected, got."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from immutabledict import immutabledict

from axcore.errors import PluginError

Validator = Callable[[Any, Any, Any], None]


def of_type(*kinds: type) -> Validator:
    """Return an attrs validator that refuses values which are none of `kinds`."""
    expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)

    def check(record: Any, attribute: Any, value: Any) -> None:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise mismatch(record, attribute, value, expected=expected)

    return check


def one_of(*values: str) -> Validator:
    """Return an attrs validator that refuses all values but these."""

    def check(record: Any, attribute: Any, value: Any) -> None:
        if value not in values:
            raise mismatch(record, attribute, value, expected=" or ".join(map(repr, values)))

    return check


def a_callable(record: Any, attribute: Any, value: Any) -> None:
    """Refuse values that cannot be called."""
    if not callable(value):
        raise mismatch(record, attribute, value, expected="a callable")


def a_name(record: Any, attribute: Any, value: Any) -> None:
    """Refuse names that are empty or hold blanks, `:` or `/`."""
    of_type(str)(record, attribute, value)
    if not value or any(sign.isspace() or sign in ":/" for sign in value):
        raise mismatch(record, attribute, value, expected="a name without blanks, ':' or '/'")


def module_names(record: Any, attribute: Any, value: Any) -> None:
    """Refuse everything but tuples of names."""
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        raise mismatch(record, attribute, value, expected="a tuple of modules' names")


def positive(record: Any, attribute: Any, value: Any) -> None:
    """Refuse everything but ints above 0."""
    of_type(int)(record, attribute, value)
    if value < 1:
        raise mismatch(record, attribute, value, expected="an int above 0")


def frozen_mapping(value: Any) -> Any:
    """Return a mapping in immutable form; anything else as it is, for a validator to refuse."""
    return immutabledict(value) if isinstance(value, Mapping) else value


def frozen_names(value: Any) -> Any:
    """Return one name or several as a frozenset; anything else as it is."""
    if isinstance(value, str):
        return frozenset({value})
    return frozenset(value) if isinstance(value, Iterable) else value


def frozen_tuple(value: Any) -> Any:
    """Return a list as a tuple; anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def tuple_of(kind: type) -> Validator:
    """Return a validator for tuples of `kind`."""

    def check(record: Any, attribute: Any, value: Any) -> None:
        if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
            raise mismatch(record, attribute, value, expected=f"a tuple of {kind.__name__}")

    return check


def mapping_of(kind: type) -> Validator:
    """Return a validator for mappings from str to `kind`."""

    def check(record: Any, attribute: Any, value: Any) -> None:
        of_type(Mapping)(record, attribute, value)
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, kind) or isinstance(item, bool):
                expected = f"a mapping from str to {kind.__name__}"
                raise mismatch(record, attribute, {key: item}, expected=expected)

    return check


def mismatch(record: Any, attribute: Any, value: Any, *, expected: str) -> PluginError:
    """Return the error of a field whose value is not what is `expected`."""
    return PluginError(
        f"{type(record).__name__}.{attribute.name} is {value!r}; "
        f"expected {expected}, got {type(value).__name__}"
    )
