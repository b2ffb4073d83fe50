"""What every registered record is made of: its base class, references by name, validators."""

from axcore.registration.record import Record
from axcore.registration.ref import Ref

__all__ = ["Record", "Ref"]
