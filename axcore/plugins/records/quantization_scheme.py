"""`QuantizationScheme`: the record of a quantization scheme."""

from typing import ClassVar

import attrs

from axcore.hardware.hardware import Hardware
from axcore.hardware.predicates import Predicate, predicate_reason, requires
from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_callable, a_name, of_type


@record(hook="quantization_schemes")
@attrs.frozen(kw_only=True)
class QuantizationScheme(Record):
    """A scheme that every product of a model can be switched to: `axcore train tiny --modify NAME`.

    A run whose config holds the scheme is refused on hardware that `requires` refuses, unless the
    config pins the kernel of `op` itself.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.layers.Dot`, with `grouped` for experts.
        requires: From hardware to None, or why not there. Anywhere where not given.
        op: The op that computes its products.
        summary: One line.

    Example:
        @hook.quantization_schemes
        def quantization_schemes():
            yield QuantizationScheme(name="acme_int4", config=Ref("axl_acme.int4:Int4.Config"),
                                     requires=requires(family="acme"),
                                     summary="int4 with scales per block")
    """

    kind: ClassVar[str] = "quantization scheme"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    requires: Predicate = attrs.field(default=requires(), validator=a_callable)
    op: str = attrs.field(default="quantized_dot", validator=a_name)
    summary: str = attrs.field(validator=of_type(str))

    def unsupported_hardware_reason(self, hardware: Hardware) -> str | None:
        """Returns None where the scheme can run on `hardware`, else the reason why it cannot.

        Raises:
            PluginError: The predicate returned neither None nor a reason. What it raises itself
                gains a note.
        """
        return predicate_reason(self, self.requires, hardware)
