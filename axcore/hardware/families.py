"""`HardwareFamily`: the record by which a plugin describes its hardware."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

from axcore.errors import PluginError
from axcore.hardware.hardware import Hardware
from axcore.registration import Record, Ref, a_name, frozen_tuple, mismatch, of_type, record


def _family_name(family: Any, attribute: Any, value: Any) -> None:
    a_name(family, attribute, value)
    if "-" in value:
        raise mismatch(family, attribute, value, expected="a name without '-'")


def _hosts(family: Any, attribute: Any, value: Any) -> None:
    of_type(tuple)(family, attribute, value)
    if not value:
        raise PluginError(f"HardwareFamily {family.name!r} describes no generation")
    for host in value:
        if not isinstance(host, Hardware) or host.family != family.name:
            raise mismatch(family, attribute, host, expected=f"Hardware of family {family.name!r}")
    generations = [host.generation for host in value]
    if len(set(generations)) < len(generations):
        raise PluginError(f"HardwareFamily {family.name!r} names a generation twice: {generations}")


@record(hook="hardware_families")
@attrs.frozen(kw_only=True)
class HardwareFamily(Record):
    """A family of hardware: what its generations are, and how its devices are recognised.

    Args:
        name: First part of its targets' names; contains no `-`.
        hosts: One full host of each generation.
        detect: `(platform, device_kind) -> generation or None`, both as a JAX device names them.
        summary: One line.
        present: `(environment) -> bool`: whether JAX will find such devices here, as far as can be
            said before it starts and without importing it. Without it, flags for the family are
            set only where a target is named.
        install: What to `pip install` so that JAX finds them, where it does not.
        is_one_host: Whether a target is one host whatever its number, as a host's own devices are.

    Example:
        @hook.hardware_families
        def hardware_families():
            x1 = Hardware(family="acme", generation="x1", chips=4, memory_bytes=32 * 2**30)
            yield HardwareFamily(name="acme", hosts=(x1,), detect=Ref("axl_acme.detect:detect"),
                                 summary="Acme accelerators")
    """

    kind: ClassVar[str] = "hardware family"

    name: str = attrs.field(validator=_family_name)
    hosts: tuple[Hardware, ...] = attrs.field(converter=frozen_tuple, validator=_hosts)
    detect: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    present: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    install: str = attrs.field(default="", validator=of_type(str))
    is_one_host: bool = attrs.field(default=False, validator=of_type(bool))

    @property
    def generations(self) -> tuple[str, ...]:
        """The generations described."""
        return tuple(host.generation for host in self.hosts)

    def host(self, generation: str) -> Hardware | None:
        """Return one full host of that generation, or None."""
        return next((host for host in self.hosts if host.generation == generation), None)


def first_present(
    families: Sequence[HardwareFamily], environment: Mapping[str, str]
) -> HardwareFamily | None:
    """Return the first family whose plugin says that its hardware is present; may be None."""
    for family in families:
        if family.present is not None and family.call("present", environment, returns=bool):
            return family
    return None
