"""`Modifier`: the record of a modifier."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="modifiers")
@attrs.frozen(kw_only=True)
class Modifier(Record):
    """A change of configs that users ask for by name: `axcore train tiny --modify NAME`.

    No plugin changes a config unasked.

    Args:
        name: As a user asks for it.
        config: A config class whose instances have a pure `apply(cfg, hardware) -> cfg`; users set
            its fields by `--modify 'NAME(field=value)'`.
        summary: One line.

    Example:
        @hook.modifiers
        def modifiers():
            yield Modifier(name="acme_packed", config=Ref("axl_acme.modifiers:Packed"),
                           summary="Weights in Acme's packed layout")
    """

    kind: ClassVar[str] = "modifier"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
