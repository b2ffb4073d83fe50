"""`Experiment`: the record of an experiment."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="experiments")
@attrs.frozen(kw_only=True)
class Experiment(Record):
    """A named, complete training config.

    Args:
        name: As `axcore train NAME` takes it.
        fn: A function of no arguments that returns the trainer's config.
        summary: One line, for the list of experiments.

    Example:
        @hook.experiments
        def experiments():
            yield Experiment(name="acme_tiny", fn=Ref("axl_acme.experiments:tiny"),
                             summary="A small model on Acme chips")
    """

    kind: ClassVar[str] = "experiment"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
