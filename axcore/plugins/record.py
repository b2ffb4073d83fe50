"""`Record`: what the values that registration hooks yield have in common."""

from typing import Any, ClassVar, Self

import attrs

from axcore.plugins.fields import of_type
from axcore.plugins.ref import Ref


@attrs.frozen(kw_only=True, slots=False)
class Record:
    """A frozen value that one plugin contributes. Only its subclasses are ever made.

    Args:
        plugin: Who brought it. The host stamps it; authors leave it out.
    """

    kind: ClassVar[str]
    key_fields: ClassVar[tuple[str, ...]] = ("name",)

    plugin: str = attrs.field(default="", validator=of_type(str))

    @property
    def key(self) -> str:
        """What tells this record from others of its kind: no two may share it."""
        return "/".join(str(getattr(self, name)) for name in self.key_fields)

    def stamped(self, plugin: str) -> Self:
        """Returns the record, and every Ref in it, marked as brought by `plugin`."""
        changes: dict[str, Any] = {"plugin": plugin}
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, Ref):
                changes[field.name] = attrs.evolve(value, plugin=plugin)
        return attrs.evolve(self, **changes)
