"""`RunObserver`: the record of an observer."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="observers")
@attrs.frozen(kw_only=True)
class RunObserver(Record):
    """Something that watches runs, where their config names it. It cannot change them.

    It gets every event of a run as a frozen value, in a thread of its own. One that raises, or has
    not finished after 300 s (`AXCORE_CALLBACK_TIMEOUT_S`), is switched off with a warning, and the
    run continues.

    Args:
        name: As a user asks for it: `--set "observers=('NAME',)"`.
        fn: A function of no arguments, or a class, that makes an observer: what is called with
            each `axcore.trainer.Event` of one run.
        summary: One line.
        library: What it imports, if anything; a run looks for it before it reads data.

    Example:
        @hook.observers
        def observers():
            yield RunObserver(name="acme_lamp", fn=Ref("axl_acme.lamp:Lamp"),
                              summary="A lamp that is on while a run makes steps")
    """

    kind: ClassVar[str] = "observer"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    library: str = attrs.field(default="", validator=of_type(str))
