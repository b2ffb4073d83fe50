"""`JobLauncher`: the record of something that starts runs on an engine."""

from typing import ClassVar

import attrs

from axcore.plugins.fields import a_name, of_type
from axcore.plugins.record import Record
from axcore.plugins.ref import Ref


@attrs.frozen(kw_only=True)
class JobLauncher(Record):
    """Something that starts a run on an engine: `axcore launch NAME EXPERIMENT`.

    Args:
        name: As a user asks for it.
        config: A config class, a subclass of `axcore.launch.Launcher`, with a field for each thing
            that the engine wants to know.
        place: A function from the environment of a process, a mapping, to its
            `axcore.launch.Place` in a run of several processes, or to None where the engine started
            no such run. It reads and changes nothing else.
        summary: One line.
    """

    kind: ClassVar[str] = "launcher"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    place: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    summary: str = attrs.field(validator=of_type(str))
