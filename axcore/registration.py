"""What every registered record is made of: `Record`, references by name (`Ref`), validators.

It is below `axcore.plugins`: hardware families and mesh rules are records, and the plugin host
needs both.
"""

import importlib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args

import attrs
from immutabledict import immutabledict

from axcore.config import suggest_names
from axcore.errors import PluginError

__all__ = ["Record", "Ref"]

CORE = "core"
"""The plugin whose records are axcore's own."""

Returns = type | UnionType


def wrong_return(
    who: str, value: Any, expected: str, *, plugin: str, verb: str = "returned", shown: str = ""
) -> PluginError:
    """Return the error of a wrong value.

    Args:
        who: What returned it, with its plugin.
        value: What it returned.
        expected: What it should have returned.
        plugin: Who brought it; empty, or the core, where nobody can be blocked.
        verb: What it did with the value.
        shown: The value as text; its repr, shortened, and its type where empty.
    """
    got = "" if shown else f", got {type(value).__name__}"
    return PluginError(
        f"{who} {verb} {shown or reprlib.repr(value)}; expected {expected}{got}",
        where=f"plugin {plugin!r}" if plugin else None,
        hint="correct it"
        if plugin in ("", CORE)
        else f"report this to the authors of {plugin}, or set AXCORE_BLOCK={plugin}",
    )


def note_owner(error: BaseException, where: str, plugin: str) -> None:
    """Note on an exception that it is from a plugin's code, and how to run without that.

    Args:
        error: Keeps its type.
        where: Which code, with its plugin.
        plugin: Empty, or the core, where nobody can be blocked: nothing is noted.
    """
    is_said = isinstance(error, PluginError) and error.where == f"plugin {plugin!r}"
    if plugin not in ("", CORE) and not is_said:
        error.add_note(f"in {where}; set AXCORE_BLOCK={plugin} to run without it")


def names_of(returns: Returns) -> str:
    """Return how an error names the types that were expected."""
    kinds: Iterable[Any] = get_args(returns) or (returns,)
    return " or ".join("None" if kind is type(None) else kind.__qualname__ for kind in kinds)


_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _well_formed(ref: "Ref", attribute: Any, value: Any) -> None:
    if not isinstance(value, str) or not _TARGET.fullmatch(value):
        raise PluginError(
            f"Ref target is {value!r}; expected 'package.module:name'",
            hint="write the module, a colon, and the name in it, as Ref('axl_acme.flash:forward')",
        )


@attrs.frozen
class Ref:
    """A lazy reference, as `Ref("axl_acme.flash:forward")`.

    Args:
        target: Module, colon, and the dotted name in that module.
        plugin: Who brought the reference; the host stamps it. No part of equality.
    """

    target: str = attrs.field(validator=_well_formed)
    plugin: str = attrs.field(default="", eq=False, kw_only=True, repr=False)

    def resolve(self) -> Any:
        """Imports the module and returns what the reference names.

        An exception that the module itself raises while it is imported keeps its type and gains a
        note; only a reference that leads nowhere is an error of ours.

        Raises:
            PluginError: The module or the name does not exist, or the module lacks a dependency.
        """
        module_name, _, path = self.target.partition(":")
        value = self._import(module_name)
        for step in path.split("."):
            try:
                value = getattr(value, step)
            except AttributeError:
                raise self._nothing_there(value, step) from None
        return value

    def _import(self, module_name: str) -> Any:
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name or module_name
            if module_name == missing or module_name.startswith(missing + "."):
                raise PluginError(
                    f"{self._owner()} refers to {self.target!r}, but there is no module "
                    f"{missing!r}",
                    where=self.target,
                    hint=f"correct the Ref, or install what brings {missing}",
                ) from None
            raise PluginError(
                f"{self._owner()} refers to {self.target!r}, whose module needs {missing!r}, "
                "and that is not installed",
                where=self.target,
                hint=f"install {missing}",
            ) from error
        except Exception as error:
            blocks = f"; set AXCORE_BLOCK={self.plugin} to run without it"
            error.add_note(
                f"while resolving {self.target!r} of {self._owner()}"
                f"{'' if self.plugin in ('', CORE) else blocks}"
            )
            raise

    def _nothing_there(self, holder: Any, step: str) -> PluginError:
        there = [name for name in vars(holder) if not name.startswith("_")]
        return PluginError(
            f"{self._owner()} refers to {self.target!r}, but there is no {step!r} in "
            f"{getattr(holder, '__name__', holder)!s}; {suggest_names(step, there)}",
            where=self.target,
            hint="correct the Ref",
        )

    def _owner(self) -> str:
        return f"plugin {self.plugin!r}" if self.plugin else "a Ref"


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


C = TypeVar("C", bound=type)


@attrs.frozen(kw_only=True, slots=False)
class Record:
    """A frozen value that one plugin contributes. Only its subclasses are ever made.

    Args:
        plugin: Who brought it. The host stamps it; authors leave it out.
    """

    hook: ClassVar[str]
    kind: ClassVar[str]
    key_fields: ClassVar[tuple[str, ...]] = ("name",)

    plugin: str = attrs.field(default="", validator=of_type(str))

    @property
    def key(self) -> str:
        """What distinguishes this record from others of its kind: no two may share it."""
        return "/".join(str(getattr(self, name)) for name in self.key_fields)

    def stamped(self, plugin: str) -> Self:
        """Return the record, and every Ref in it, marked as brought by `plugin`."""
        changes: dict[str, Any] = {"plugin": plugin}
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, Ref):
                changes[field.name] = attrs.evolve(value, plugin=plugin)
        return attrs.evolve(self, **changes)

    def call(self, field: str, *args: Any, returns: Returns, expected: str = "") -> Any:
        """Return what the function in a field returns, which must be of the type that is declared.

        Args:
            field: Name of a field that contains a `Ref`.
            *args: For the function.
            returns: Type, or union of types, of what it may return.
            expected: How the error names them.

        Raises:
            PluginError: It cannot be called, or returned something else. What it raises itself
                gains a note of whose it is.
        """
        ref: Ref = getattr(self, field)
        fn = ref.resolve()
        if not callable(fn):
            raise self.wrong_field(field, fn, "a function")
        try:
            result = fn(*args)
        except Exception as error:
            self.note(error, field)
            raise
        except SystemExit as error:  # would end axcore without a word
            what = expected or names_of(returns)
            raise wrong_return(
                f"{self._at(field)},", error, what, plugin=self.plugin, verb="raised"
            ) from error
        if not isinstance(result, returns):
            raise self.wrong_return(field, result, expected or names_of(returns))
        return result

    def note(self, error: BaseException, field: str) -> None:
        """Note on an exception from a plugin's code whose it is."""
        note_owner(error, self._at(field), self.plugin)

    def wrong_return(
        self, field: str, value: Any, expected: str, *, shown: str = ""
    ) -> PluginError:
        """Return the error for what the function in a field returned, `shown` as text if given."""
        at = f"{self._at(field)},"
        return wrong_return(at, value, expected, plugin=self.plugin, shown=shown)

    def wrong_field(self, field: str, value: Any, expected: str) -> PluginError:
        """Return the error for what the `Ref` in a field leads to."""
        return wrong_return(f"{self._at(field)},", value, expected, plugin=self.plugin, verb="is")

    def _at(self, field: str) -> str:
        return (
            f"{getattr(self, field).target}, the `{field}` of {self.kind} {self.key!r} of plugin "
            f"{self.plugin!r}"
        )


def record(*, hook: str) -> Callable[[C], C]:
    """Declare the hook by which plugins bring records of a class.

    The rest is made from it: the hook's pluggy spec, the typed decorator `hook.NAME`, and its
    section of `docs/plugins/hooks.md`, from the class's docstring. After adding a class, run
    `python -m axcore.plugins.generate`.

    Args:
        hook: Name of the hook; plural, as a plugin's function yields any number of records.

    Example:
        @record(hook="fountains")
        @attrs.frozen(kw_only=True)
        class Fountain(Record):
            \"""A fountain, in a file of `axcore/plugins/records/`.

            Args:
                name: Shown in lists.
            \"""

            kind: ClassVar[str] = "fountain"

            name: str = attrs.field(validator=a_name)
    """

    def declare(cls: C) -> C:
        cls.hook = hook  # type: ignore[attr-defined]
        return cls

    return declare
