"""`HuggingFaceFamily`: the record of a family of pretrained checkpoints."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="hugging_face_families")
@attrs.frozen(kw_only=True)
class HuggingFaceFamily(Record):
    """A family of models that `axcore convert` reads and writes.

    Args:
        name: The `model_type` of its `config.json`.
        family: An `axcore.interop.Family`: its config map and its weight map.
        summary: One line.

    Example:
        @hook.hugging_face_families
        def hugging_face_families():
            yield HuggingFaceFamily(name="acme", family=Ref("axl_acme.hugging_face:ACME"),
                                    summary="Acme's models")
    """

    kind: ClassVar[str] = "Hugging Face family"

    name: str = attrs.field(validator=a_name)
    family: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
