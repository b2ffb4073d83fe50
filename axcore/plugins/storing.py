"""`CheckpointStorage`: the record of a place where checkpoints can be kept."""

from typing import ClassVar

import attrs

from axcore.plugins.fields import a_name, of_type
from axcore.plugins.record import Record
from axcore.plugins.ref import Ref


@attrs.frozen(kw_only=True)
class CheckpointStorage(Record):
    """A place where checkpoints can be kept: `--set checkpoint.directory=NAME://PLACE`.

    Args:
        name: The scheme of its directories.
        fn: A function from what follows `NAME://`, a str, to an `axcore.checkpoint.StepStorage`; it
            touches nothing before it is asked to.
        summary: One line.
    """

    kind: ClassVar[str] = "checkpoint storage"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
