"""`RopeScaling`: the record of a way to scale rotary positions."""

from collections.abc import Mapping
from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, frozen_mapping, mapping_of, of_type


@record(hook="rope_scalings")
@attrs.frozen(kw_only=True)
class RopeScaling(Record):
    """A `rope_type` of published `config.json`s, in every family that has rotary positions.

    Args:
        name: The `rope_type`.
        config: The Config class of its position layer, with a field `theta`.
        fields: Fields of that class by those of `rope_scaling`.
        optional: Of these, fields that `rope_scaling` may leave out: both sides then mean the same.
        summary: One line.

    Example:
        @hook.rope_scalings
        def rope_scalings():
            yield RopeScaling(name="acme", config=Ref("axl_acme.rope:AcmeRoPE.Config"),
                              fields={"factor": "factor"}, summary="Acme's scaling")
    """

    kind: ClassVar[str] = "RoPE scaling"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    fields: Mapping[str, str] = attrs.field(converter=frozen_mapping, validator=mapping_of(str))
    optional: Mapping[str, str] = attrs.field(
        factory=dict, converter=frozen_mapping, validator=mapping_of(str)
    )
    summary: str = attrs.field(validator=of_type(str))
