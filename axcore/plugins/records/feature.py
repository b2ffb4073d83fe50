"""`Feature`: the record of a feature."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, frozen_tuple, module_names, of_type


@record(hook="features")
@attrs.frozen(kw_only=True)
class Feature(Record):
    """A feature that any model can get, and whose cost `axcore loc` measures.

    Args:
        name: As a user asks for it: `axcore loc NAME`.
        apply: A function from a training config to one with the feature, such as somebody would
            write for their own models; its lines are what is counted. None where nothing has to
            be written.
        evidence: From a trace, `axcore.complexity.Trace`, to None where the feature is in it, or
            why it is not.
        implementation: The feature's own modules, or names in them as `axl_acme.norm:AcmeNorm`,
            which nothing else may import.
        target: The hardware to trace for.
        variant_of: What it is one of several variants of, such as `rope` or `kv_cache`; `axcore
            loc` measures what all of them cost together. Empty where it is a feature of its own.
        summary: One line.

    Example:
        @hook.features
        def features():
            yield Feature(name="acme_norm", apply=Ref("axl_acme.features:with_acme_norm"),
                          evidence=Ref("axl_acme.features:has_acme_norm"),
                          implementation=("axl_acme.norm",), summary="Acme's norm everywhere")
    """

    kind: ClassVar[str] = "feature"

    name: str = attrs.field(validator=a_name)
    apply: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    evidence: Ref = attrs.field(validator=of_type(Ref))
    implementation: tuple[str, ...] = attrs.field(
        default=(), converter=frozen_tuple, validator=module_names
    )
    target: str = attrs.field(default="cpu-1", validator=a_name)
    variant_of: str = attrs.field(default="", validator=of_type(str))
    summary: str = attrs.field(validator=of_type(str))
