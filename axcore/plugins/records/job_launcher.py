"""`JobLauncher`: the record of a launcher."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="launchers")
@attrs.frozen(kw_only=True)
class JobLauncher(Record):
    """Something that starts a run on an engine: `axcore launch NAME EXPERIMENT`.

    Args:
        name: As a user asks for it.
        config: A config class, a subclass of `axcore.launch.Launcher`, with a field for each thing
            that the engine wants to know.
        process_info: A function from the environment of a process, a mapping, to its
            `axcore.launch.ProcessInfo` in a run of several processes, or to None where the engine
            started no such run. It reads and changes nothing else.
        summary: One line.

    Example:
        @hook.launchers
        def launchers():
            yield JobLauncher(name="acme_grid", config=Ref("axl_acme.grid:Grid"),
                              process_info=Ref("axl_acme.grid:process_info"),
                              summary="Acme's batch queue")
    """

    kind: ClassVar[str] = "launcher"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    process_info: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    summary: str = attrs.field(validator=of_type(str))
