"""`LayerVariant`: the record of a layer variant."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="layer_variants")
@attrs.frozen(kw_only=True)
class LayerVariant(Record):
    """A layer that can replace another layer.

    Args:
        name: As a user asks for it.
        config: Its Config class, or a function from the config it replaces to its own.
        replaces: The layer class that it replaces.
        summary: One line.

    Example:
        @hook.layer_variants
        def layer_variants():
            yield LayerVariant(name="acme_norm", config=Ref("axl_acme.norm:AcmeNorm.Config"),
                               replaces=Ref("axcore.layers:RMSNorm"), summary="Norm without mean")
    """

    kind: ClassVar[str] = "layer variant"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    replaces: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
