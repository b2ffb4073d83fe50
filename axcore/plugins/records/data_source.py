"""`DataSource`: the record of a data source."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="data_sources")
@attrs.frozen(kw_only=True)
class DataSource(Record):
    """A source of text to train on, which users ask for by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.data.Source`.
        summary: One line.

    Example:
        @hook.data_sources
        def data_sources():
            yield DataSource(name="acme_mail", config=Ref("axl_acme.mail:Mail.Config"),
                             summary="Messages of a mailbox")
    """

    kind: ClassVar[str] = "data source"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
