"""`QuantizationScheme`: a way to compute the products of layers from narrow numbers."""

from typing import ClassVar

import attrs

from axcore.plugins.fields import a_callable, a_name, of_type
from axcore.plugins.hardware import Hardware
from axcore.plugins.predicates import on
from axcore.plugins.record import Record
from axcore.plugins.records import Predicate, why_not
from axcore.plugins.ref import Ref


@attrs.frozen(kw_only=True)
class QuantizationScheme(Record):
    """A scheme that every product of a model can be switched to: `axcore train tiny --modify NAME`.

    A run whose config holds the scheme is refused on hardware that `on` says no to, unless the
    config pins the kernel of `op` itself.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.layers.Dot`, with `grouped` for experts.
        on: From hardware to None, or why not there. Anywhere where not given.
        op: The op that computes its products.
        summary: One line.
    """

    kind: ClassVar[str] = "quantization scheme"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    on: Predicate = attrs.field(default=on(), validator=a_callable)
    op: str = attrs.field(default="quantized_dot", validator=a_name)
    summary: str = attrs.field(validator=of_type(str))

    def why_not_on(self, hardware: Hardware) -> str | None:
        """Returns None where the scheme can run on `hardware`, else the reason why it cannot.

        Raises:
            PluginError: The predicate returned neither None nor a reason. What it raises itself
                gains a note.
        """
        return why_not(self, self.on, hardware)
