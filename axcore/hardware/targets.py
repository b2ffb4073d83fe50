"""From a target's name, or from the devices at hand, to a `Hardware`, by the families known."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.hardware.device_start import start_devices
from axcore.hardware.families import HardwareFamily, first_present
from axcore.hardware.hardware import UNKNOWN, Hardware


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
