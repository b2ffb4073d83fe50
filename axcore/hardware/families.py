"""`HardwareFamily`, by which a plugin describes hardware, and how it is found by families.

A target's name or the devices at hand give a `Hardware`, by the families known. The core's own
family are host processors. XLA shows several devices of one on request, which also replace devices
of hardware that brings no compiler of its own.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.hardware.device_start import start_devices
from axcore.hardware.hardware import UNKNOWN, Hardware
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


@attrs.frozen
class FamilyLookup:
    """Answers `Hardware.parse` and `Hardware.detect` by the families that it is given each time."""

    families: Callable[[], Sequence[HardwareFamily]]

    def parse(self, name: str) -> Hardware:
        """Return the hardware that a target's name means."""
        return parse_target(name, self.families())

    def detect(self, devices: Sequence[Any] | None) -> Hardware:
        """Return the hardware of devices; of all of JAX's where None."""
        families = self.families()
        if devices is None:
            devices = start_devices(is_present=first_present(families, os.environ) is not None)
        return detect_hardware(devices, families)


def parse_target(name: str, families: Sequence[HardwareFamily]) -> Hardware:
    """Return what `family-generation-N`, `family-N` or `generation-N` means.

    `SxN` in the place of N means S slices of N. See `Hardware.parse`.

    Args:
        name: The target's name.
        families: Those known.
    """
    stem, _, number = name.rpartition("-")
    counts = _counts(number)
    if not stem or counts is None:
        raise PluginError(
            f"target {name!r} does not end in a number; expected family-generation-N or family-N",
            hint=f"name one as {_examples(families)}",
        )
    slices, units = counts
    if slices * units < 1:
        raise PluginError(f"target {name!r} counts {number}; expected 1 or more", hint=f"{stem}-1")
    family, host = _family_of(name, stem, families)
    if units % host.units_per_chip:
        raise PluginError(
            f"target {name!r}: the number counts {host.units_per_chip} per chip, "
            f"and {units} is not a multiple of that",
            hint=f"name {host.resized(host.chips_per_host).name} for one host",
        )
    if slices > 1 and not host.links_hosts:
        raise PluginError(
            f"target {name!r}: {host.chip} comes in hosts that a network joins, and not in slices",
            hint=f"name {stem}-{slices * units}",
        )
    chips = slices * units // host.units_per_chip
    try:
        return host.resized(chips, chips if family.is_one_host else None, slices=slices)
    except PluginError as error:
        raise PluginError(
            f"target {name!r}: {error.what}", where=error.where, hint=error.hint
        ) from None


def _counts(number: str) -> tuple[int, int] | None:
    """Return slices and units of each, of `N` or `SxN`; None for anything else."""
    slices, times, units = number.rpartition("x")
    counts = (slices if times else "1", units)
    return (int(counts[0]), int(units)) if all(map(str.isdecimal, counts)) else None


def detect_hardware(devices: Sequence[Any], families: Sequence[HardwareFamily]) -> Hardware:
    """Return the hardware of JAX's devices. See `Hardware.detect`.

    Args:
        devices: Objects with `platform`, `device_kind`, `process_index`, and maybe `slice_index`.
        families: Those known.
    """
    first = devices[0]
    host = _recognised(first.platform, first.device_kind, families)
    if host is None:
        return Hardware(family=first.platform, generation=UNKNOWN, chips=len(devices))
    on_first = sum(device.process_index == first.process_index for device in devices)
    per_chip = host.devices_per_chip
    chips, chips_per_host = (max(1, count // per_chip) for count in (len(devices), on_first))
    slices = {getattr(device, "slice_index", 0) for device in devices} if host.links_hosts else {0}
    return host.resized(chips, chips_per_host, slices=len(slices))


def _recognised(
    platform: str, device_kind: str, families: Sequence[HardwareFamily]
) -> Hardware | None:
    claims: list[tuple[HardwareFamily, Hardware]] = []
    for family in families:
        generation = family.call("detect", platform, device_kind, returns=str | None)
        if generation is not None:
            claims.append((family, _described(family, generation)))
    brought = [claim for claim in claims if claim[0].plugin != "core"] or claims
    if len(brought) > 1:
        names = " and ".join(f"{family.name} ({family.plugin})" for family, _ in brought)
        raise PluginError(
            f"device kind {device_kind!r} of platform {platform!r} is claimed by {names}",
            hint=f"set AXCORE_BLOCK={brought[-1][0].plugin}",
        )
    return brought[0][1] if brought else None


def _described(family: HardwareFamily, generation: str) -> Hardware:
    host = family.host(generation)
    if host is None:
        known = ", ".join(family.generations)
        raise family.wrong_return("detect", generation, f"a generation it describes: {known}")
    return host


def _family_of(
    name: str, stem: str, families: Sequence[HardwareFamily]
) -> tuple[HardwareFamily, Hardware]:
    known = {
        "-".join(part for part in (family.name, host.generation) if part): (family, host)
        for family in families
        for host in family.hosts
    }
    if stem in known:
        return known[stem]
    short = {full: found for full, found in known.items() if found[1].generation == stem}
    if len(short) == 1:
        return next(iter(short.values()))
    if short:
        number = name.rpartition("-")[2]
        names = " or ".join(f"{full}-{number}" for full in sorted(short))
        raise PluginError(f"target {name!r} may mean {names}", hint="write the family, too")
    raise PluginError(
        f"no plugin knows target {name!r}; {suggest_names(stem, known)}",
        hint=f"name one as {_examples(families)}, or install the plugin for {stem.split('-')[0]}",
    )


def _examples(families: Sequence[HardwareFamily]) -> str:
    return " or ".join(family.hosts[-1].name for family in families)


DEVICE_COUNT = "--xla_force_host_platform_device_count"
COLLECTIVE_TIMEOUT = "--xla_cpu_collective_timeout_seconds"
COLLECTIVE_TIMEOUT_S = 600


def detect_cpu(platform: str, device_kind: str) -> str | None:
    """Return the one generation of host processors, which has no name, or None."""
    return "" if platform == "cpu" else None


def device_count_flag(hardware: Hardware) -> Mapping[str, str]:
    """Return the flag by which XLA shows as many devices as a host of the hardware has.

    Of several processes, one that is stopped would keep the others waiting in a collective forever
    without a limit.
    """
    flags = {DEVICE_COUNT: str(hardware.num_devices // hardware.num_hosts)}
    if hardware.num_hosts > 1:
        flags[COLLECTIVE_TIMEOUT] = str(COLLECTIVE_TIMEOUT_S)
    return flags


def host_environment(hardware: Hardware) -> Mapping[str, str]:
    """Return the variables of one process in which the host shows all devices of `hardware`."""
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{DEVICE_COUNT}={hardware.num_devices}"}
