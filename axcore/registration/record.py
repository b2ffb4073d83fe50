"""`Record`: what the values that registration hooks yield have in common."""

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import attrs

from axcore.errors import PluginError
from axcore.registration.ref import Ref
from axcore.registration.returns import Returns, names_of, note_owner, wrong_return
from axcore.registration.validators import of_type

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
            field: Name of a field that holds a `Ref`.
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
