"""`EvaluationTask`: the record of something that models are measured by."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="evaluation_tasks")
@attrs.frozen(kw_only=True)
class EvaluationTask(Record):
    """Samples and how answers to them are scored, which `axcore evaluate --tasks` asks for by name.

    Args:
        name: As a user asks for it.
        config: A function without arguments that returns the config of an
            `axcore.evaluation.ScoredTask`, or its Config class.
        summary: One line.

    Example:
        @hook.evaluation_tasks
        def evaluation_tasks():
            yield EvaluationTask(name="acme_capitals", config=Ref("axl_acme.capitals:capitals"),
                                 summary="Capitals of countries, as multiple choice")
    """

    kind: ClassVar[str] = "evaluation task"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
