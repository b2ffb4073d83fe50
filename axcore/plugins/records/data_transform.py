"""`DataTransform`: the record of a transform of documents."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="data_transforms")
@attrs.frozen(kw_only=True)
class DataTransform(Record):
    """A transform of documents, which users add to their sources by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.data.Transform`.
        summary: One line.

    Example:
        @hook.data_transforms
        def data_transforms():
            yield DataTransform(name="acme_clean", config=Ref("axl_acme.clean:Clean.Config"),
                                summary="Takes signatures out of messages")
    """

    kind: ClassVar[str] = "data transform"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
