"""`Command`: the record of a command."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="commands")
@attrs.frozen(kw_only=True)
class Command(Record):
    """A subcommand of `axcore`.

    Args:
        name: As it is typed.
        fn: A click command; imported when it is called or its own help is asked for.
        summary: One line, for `axcore --help`, which imports no command.

    Example:
        @hook.commands
        def commands():
            yield Command(name="acme-top", fn=Ref("axl_acme.top:top"), summary="Shows chip load")
    """

    kind: ClassVar[str] = "command"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
