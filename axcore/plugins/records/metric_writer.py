"""`MetricWriter`: the record of a metric writer."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="metric_writers")
@attrs.frozen(kw_only=True)
class MetricWriter(Record):
    """Something that a run's metrics are written to, where its config names it.

    Metrics may not be lost: a writer that raises, or has not finished a call after 300 s
    (`AXCORE_CALLBACK_TIMEOUT_S`), ends the run with an error that names it. All calls of a writer
    are made in one thread of its own.

    Args:
        name: As a user asks for it: `--set "writers=('json_lines', 'NAME')"`.
        fn: A function from the run directory, a str, and the step that the run resumes from to a
            writer: `write(step, split, metrics)` and `close()`, as `axcore.trainer.Writer`. What
            an earlier start wrote past that step is dropped; it will be written again.
        summary: One line.
        library: What it imports, if anything; a run looks for it before it reads data.

    Example:
        @hook.metric_writers
        def metric_writers():
            yield MetricWriter(name="acme_board", fn=Ref("axl_acme.board:open_board"),
                               summary="Curves on Acme's board")
    """

    kind: ClassVar[str] = "metric writer"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    library: str = attrs.field(default="", validator=of_type(str))
