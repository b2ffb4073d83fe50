"""`TrainingTask`: the record of an objective."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="training_tasks")
@attrs.frozen(kw_only=True)
class TrainingTask(Record):
    """An objective around a model, which users ask for by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.tasks.Task`.
        summary: One line.

    Example:
        @hook.training_tasks
        def training_tasks():
            yield TrainingTask(name="acme_margin", config=Ref("axl_acme.margin:Margin.Config"),
                               summary="Answers that people preferred, by a margin")
    """

    kind: ClassVar[str] = "training task"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
