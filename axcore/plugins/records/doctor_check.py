"""`DoctorCheck`: the record of a doctor check."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="doctor_checks")
@attrs.frozen(kw_only=True)
class DoctorCheck(Record):
    """One thing that `axcore doctor` looks at.

    Args:
        name: Shown beside what was found.
        fn: A function of no arguments that yields `Finding`s; one can bring a `Fix`.
        summary: One line.

    Example:
        @hook.doctor_checks
        def doctor_checks():
            yield DoctorCheck(name="acme-driver", fn=Ref("axl_acme.doctor:driver"),
                              summary="The driver is new enough")
    """

    kind: ClassVar[str] = "doctor check"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
