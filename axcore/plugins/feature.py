"""`Feature`: something that can be added to any model, and what shows that it is there."""

from typing import Any, ClassVar

import attrs

from axcore.plugins.fields import a_name, frozen_tuple, mismatch, of_type
from axcore.plugins.record import Record
from axcore.plugins.ref import Ref


def _module_names(record: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        raise mismatch(record, attribute, value, expected="a tuple of names of modules")


@attrs.frozen(kw_only=True)
class Feature(Record):
    """A feature whose cost `axcore loc` measures.

    Args:
        name: As a user asks for it: `axcore loc NAME`.
        apply: A function from a training config to one with the feature, such as somebody would
            write for their own models; its lines are what is counted. None where nothing has to
            be written.
        evidence: From a trace, `axcore.complexity.Trace`, to None where the feature is in it, or
            why it is not.
        implementation: The feature's own modules, which nothing else may import.
        target: The hardware to trace for.
        summary: One line.
    """

    kind: ClassVar[str] = "feature"

    name: str = attrs.field(validator=a_name)
    apply: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    evidence: Ref = attrs.field(validator=of_type(Ref))
    implementation: tuple[str, ...] = attrs.field(
        default=(), converter=frozen_tuple, validator=_module_names
    )
    target: str = attrs.field(default="cpu-1", validator=a_name)
    summary: str = attrs.field(validator=of_type(str))
