"""`CheckpointStorage`: the record of a checkpoint storage."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="checkpoint_storages")
@attrs.frozen(kw_only=True)
class CheckpointStorage(Record):
    """A place where checkpoints can be kept: `--set checkpoint.directory=NAME://PLACE`.

    Args:
        name: The scheme of its directories.
        fn: A function from what follows `NAME://`, a str, to an `axcore.checkpoint.StepStorage`; it
            touches nothing before it is asked to.
        summary: One line.

    Example:
        @hook.checkpoint_storages
        def checkpoint_storages():
            yield CheckpointStorage(name="acme", fn=Ref("axl_acme.vault:open_vault"),
                                    summary="Acme's vault")
    """

    kind: ClassVar[str] = "checkpoint storage"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
