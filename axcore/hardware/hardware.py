"""`Hardware`: a machine as a value, which predicates, mesh rules and reports are about; `requires`.

`requires(...)` makes a predicate on hardware that is itself a value, so records compare and hash.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
from immutabledict import immutabledict

from axcore.errors import PluginError
from axcore.registration import (
    Record,
    a_name,
    frozen_mapping,
    frozen_names,
    mapping_of,
    note_owner,
    of_type,
    positive,
)

_EMPTY: Mapping[str, float] = immutabledict()


def _whole_hosts(hardware: "Hardware", attribute: Any, value: Any) -> None:
    positive(hardware, attribute, value)
    if hardware.chips % value:
        raise PluginError(
            f"{hardware.chips} chips are not a whole number of hosts of {value}",
            where=f"Hardware {hardware.name}",
            hint=f"name at most {value} chips, or a multiple of {value}",
        )


KERNEL_FRACTIONS = (
    "attention",
    "attention_backward",
    "grouped_matmul",
    "grouped_matmul_backward",
)
"""Ops of which `Hardware.achievable_fraction` may say what all their kernels reach, or one does."""

OTHER_FRACTIONS = ("memory", "interconnect", "network", *KERNEL_FRACTIONS)
"""What `Hardware.achievable_fraction` may name in addition to dtypes of `Hardware.peak_flops`."""


def _whole_slices(hardware: "Hardware", attribute: Any, value: Any) -> None:
    positive(hardware, attribute, value)
    if hardware.chips % value:
        raise PluginError(
            f"{hardware.chips} chips are not {value} slices of equal size",
            where=f"Hardware {hardware.chip}",
            hint=f"name a multiple of {value} chips",
        )


def _fractions(hardware: "Hardware", attribute: Any, value: Mapping[str, float]) -> None:
    mapping_of(float)(hardware, attribute, value)
    known = (*hardware.peak_flops, *OTHER_FRACTIONS)
    for name, share in value.items():
        op, _, kernel = name.partition("/")
        is_known = op in KERNEL_FRACTIONS if kernel else name in known
        if not is_known or not 0 < share <= 1:
            raise PluginError(
                f"Hardware.achievable_fraction says {name}={share}; "
                "expected a share above 0, of 1 at most, "
                f"of {', '.join(known)}",
                where=f"Hardware {hardware.name}",
                hint="divide what was measured by the figure itself, and name that figure",
            )


def _one_host(hardware: "Hardware") -> int:
    return hardware.chips


@attrs.frozen(kw_only=True)
class Hardware:
    """A number of equal accelerator chips, and the figures of one. Figures are per chip.

    Args:
        family: As plugins name it; the first part of `name`.
        generation: The middle part of `name`; empty where a family has none.
        chips: Chips in all hosts of all slices together.
        slices: Groups of hosts, each with an interconnect of its own, that the network joins.
        chips_per_host: Divides `chips`. One host where not given.
        links_hosts: Whether the interconnect joins all chips of a slice; else those of a host.
        devices_per_chip: How many JAX devices a chip shows.
        units_per_chip: What the number in `name` counts, per chip: 2 where a vendor counts cores.
        memory_bytes: Nominal capacity, where known.
        peak_flops: Dense peak FLOP/s by dtype name; empty where unknown.
        memory_bandwidth: Bytes/s, where known.
        interconnect_bandwidth: Bytes/s that a chip sends to its neighbours, where known.
        network_bandwidth: Bytes/s that a chip sends beyond its interconnect, where known.
        achievable_fraction: Shares of these figures that programs reach, where they were
            measured: of the peak by dtype name, of `memory`, `interconnect` and `network`, and,
            of the peak again, by kernels for `attention`, `attention_backward`, `grouped_matmul`
            and `grouped_matmul_backward`, or by one of them: `attention/portable`.
            What is not named counts whole.
        clock_hz: Cycles a second that its compiler's estimates of cycles count, where it makes any.
        can_branch: Whether programs may branch, and loop, by values known at run time only.
        features: Names of abilities that predicates ask for.
    """

    family: str = attrs.field(validator=a_name)
    generation: str = attrs.field(default="", validator=of_type(str))
    chips: int = attrs.field(default=1, validator=positive)
    slices: int = attrs.field(default=1, validator=_whole_slices)
    devices_per_chip: int = attrs.field(default=1, validator=positive)
    units_per_chip: int = attrs.field(default=1, validator=positive)
    chips_per_host: int = attrs.field(
        default=attrs.Factory(_one_host, takes_self=True), validator=_whole_hosts
    )
    links_hosts: bool = attrs.field(default=False, validator=of_type(bool))
    memory_bytes: int | None = attrs.field(default=None, validator=of_type(int, type(None)))
    peak_flops: Mapping[str, float] = attrs.field(
        default=_EMPTY, converter=frozen_mapping, validator=mapping_of(float)
    )
    memory_bandwidth: float | None = attrs.field(
        default=None, validator=of_type(float, int, type(None))
    )
    interconnect_bandwidth: float | None = attrs.field(
        default=None, validator=of_type(float, int, type(None))
    )
    network_bandwidth: float | None = attrs.field(
        default=None, validator=of_type(float, int, type(None))
    )
    achievable_fraction: Mapping[str, float] = attrs.field(
        default=_EMPTY, converter=frozen_mapping, validator=_fractions
    )
    clock_hz: float | None = attrs.field(default=None, validator=of_type(float, int, type(None)))
    can_branch: bool = attrs.field(default=True, validator=of_type(bool))
    features: frozenset[str] = attrs.field(
        default=frozenset(), converter=frozen_names, validator=of_type(frozenset)
    )

    @property
    def name(self) -> str:
        """The target's name: `family-generation-N`, or `family-N`; `SxN` for S slices of N."""
        number = str(self.chips // self.slices * self.units_per_chip)
        if self.slices > 1:
            number = f"{self.slices}x{number}"
        return "-".join(part for part in (self.family, self.generation, number) if part)

    @property
    def chip(self) -> str:
        """The chip's name, whatever the number of chips: `family-generation`, or `family`."""
        return "-".join(part for part in (self.family, self.generation) if part)

    @property
    def num_devices(self) -> int:
        """JAX devices in all."""
        return self.chips * self.devices_per_chip

    @property
    def num_hosts(self) -> int:
        """Hosts in all."""
        return self.chips // self.chips_per_host

    @property
    def linked_devices(self) -> int:
        """JAX devices that one interconnect joins: those of a slice, or of a host."""
        chips = self.chips // self.slices if self.links_hosts else self.chips_per_host
        return chips * self.devices_per_chip

    @property
    def is_known(self) -> bool:
        """Whether a plugin describes this generation; False where `detect` inferred it."""
        return self.generation != UNKNOWN

    def resized(
        self, chips: int, chips_per_host: int | None = None, *, slices: int = 1
    ) -> "Hardware":
        """Return the same generation with another number of chips, in slices of equal size.

        Raises:
            PluginError: `chips` is not a whole number of hosts or of slices.
        """
        per_host = chips_per_host or min(chips // slices, self.chips_per_host)
        return attrs.evolve(self, chips=chips, chips_per_host=per_host, slices=slices)

    @classmethod
    def parse(cls, name: str) -> "Hardware":
        """Return the hardware that a target's name means, as the installed plugins describe it.

        The family may be left out where one family alone has a generation of that name. `SxN` in
        the place of the number means S slices of N, as in `acme-x1-4x256`.

        >>> Hardware.parse("cpu-8").num_devices
        8

        Raises:
            PluginError: No family has that name, or the number does not fit the generation.
        """
        return _attached().parse(name)

    @classmethod
    def detect(cls, devices: Sequence[Any] | None = None) -> "Hardware":
        """Return the hardware of `devices`, or of all of JAX's devices, which this starts.

        Devices that no plugin knows give the generation `unknown`, with no figures.

        Raises:
            PluginError: Two plugins claim the same devices.
        """
        return _attached().detect(devices)


UNKNOWN = "unknown"


class HardwareLookup(Protocol):
    """What answers `Hardware.parse` and `Hardware.detect`: it knows what families there are."""

    def parse(self, name: str) -> Hardware:
        """Return the hardware that a target's name means."""

    def detect(self, devices: Sequence[Any] | None) -> Hardware:
        """Return the hardware of devices; of all of JAX's where None."""


_lookup: HardwareLookup | None = None


def attach_lookup(lookup: HardwareLookup) -> None:
    """Make `lookup` answer from now on; `axcore.plugins` attaches that of installed plugins."""
    global _lookup
    _lookup = lookup


def _attached() -> HardwareLookup:
    if _lookup is None:
        raise PluginError("no families of hardware are known yet", hint="import axcore.plugins")
    return _lookup


Predicate = Callable[[Hardware], str | None]
"""From hardware to None for yes, or the reason why not."""


@attrs.frozen(kw_only=True)
class HardwareRequirement:
    """A predicate made by `requires`: calling it gives None for yes, or the reason why not."""

    families: frozenset[str] = frozenset()
    generations: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()

    def __call__(self, hardware: Hardware) -> str | None:
        """Return None where `hardware` is meant, else the reason why it is not."""
        if self.families and hardware.family not in self.families:
            return f"wants family {_either(self.families)}, not {hardware.name}"
        if self.generations and hardware.generation not in self.generations:
            return f"wants generation {_either(self.generations)}, not {hardware.name}"
        missing = self.features - hardware.features
        if missing:
            return f"wants {', '.join(sorted(missing))}, which {hardware.name} does not have"
        return None

    def __str__(self) -> str:
        parts = [_either(self.families)] if self.families else []
        if self.generations:
            parts.append(_either(self.generations))
        if self.features:
            parts.append("with " + ", ".join(sorted(self.features)))
        return " ".join(parts) or "any"


def requires(
    *,
    family: str | Iterable[str] = (),
    generation: str | Iterable[str] = (),
    features: str | Iterable[str] = (),
) -> HardwareRequirement:
    """Return a predicate: of one of these families, one of these generations, with all features.

    What is left out is not asked for; `requires()` holds everywhere.

    >>> requires(family="acme")(Hardware(family="cpu", chips=8))
    'wants family acme, not cpu-8'
    """
    return HardwareRequirement(
        families=_names("family", family),
        generations=_names("generation", generation),
        features=_names("features", features),
    )


def predicate_reason(record: Record, predicate: Predicate, hardware: Hardware) -> str | None:
    """Return what a record's `requires` says about some hardware.

    Raises:
        PluginError: It returned neither None nor a reason. What it raises itself gains a note.
    """
    try:
        reason = predicate(hardware)
    except Exception as error:
        where = f"`requires` of {record.kind} {record.key} of plugin {record.plugin!r}"
        note_owner(error, where, record.plugin)
        raise
    if reason is not None and not (isinstance(reason, str) and reason):
        raise PluginError(
            f"`requires` of {record.kind} {record.key} returned {reason!r}; expected None or a "
            "reason",
            where=f"plugin {record.plugin!r}",
            hint=f"return None where the {record.kind} fits, and why it does not as a str "
            "otherwise",
        )
    return reason


def _names(what: str, given: str | Iterable[str]) -> frozenset[str]:
    names = frozenset({given} if isinstance(given, str) else given)
    for name in names:
        if not isinstance(name, str) or not name:
            raise PluginError(
                f"requires({what}={name!r}): expected a name, got {type(name).__name__}"
            )
    return names


def _either(names: frozenset[str]) -> str:
    return " or ".join(sorted(names))
