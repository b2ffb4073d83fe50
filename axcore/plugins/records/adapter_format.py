"""`AdapterFormat`: the record of how layers that correct others are exported."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="adapter_formats")
@attrs.frozen(kw_only=True)
class AdapterFormat(Record):
    """How a layer that corrects its `base` is exported, alone or merged into its base.

    Args:
        name: The format's.
        layer: The Config class of the layer, with a field `base`.
        format: An `axcore.interop.AdapterFormat`, as a class without arguments.
        summary: One line.

    Example:
        @hook.adapter_formats
        def adapter_formats():
            yield AdapterFormat(name="acme", layer=Ref("axl_acme.adapter:AcmeAdapter.Config"),
                                format=Ref("axl_acme.adapter:AcmeFormat"), summary="Acme's")
    """

    kind: ClassVar[str] = "adapter format"

    name: str = attrs.field(validator=a_name)
    layer: Ref = attrs.field(validator=of_type(Ref))
    format: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
