"""`Op`: the record of an op."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="ops")
@attrs.frozen(kw_only=True)
class Op(Record):
    """An operation that layers ask for, and that kernels implement.

    Args:
        name: As kernels name it.
        fn: The function that layers call.
        summary: One line.
        contract: The `axcore.testing.OpContract` by which suites prove its kernels right.
        arg_spec: `() -> Call`: what models typically ask of it, for `axcore kernels`.

    Example:
        @hook.ops
        def ops():
            yield Op(name="fft", fn=Ref("axl_acme.fft:fft"), summary="Fourier transform")
    """

    kind: ClassVar[str] = "op"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    contract: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    arg_spec: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
