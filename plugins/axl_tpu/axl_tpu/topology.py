"""Slices of TPUs by the names that libtpu gives them, for compiling with no TPU here."""

import math
from collections.abc import Mapping
from typing import Any

from axcore.errors import PluginError
from axcore.plugins import Hardware

CHIPS_PER_HOST = 4
_PREFIX = {"7x": "tpu7x"}
_TWO_DIMENSIONAL = ("v5e", "v6e")


def environment(hardware: Hardware) -> Mapping[str, str]:
    """Return the variables by which libtpu compiles for a slice and looks for no TPU.

    Several processes may compile at once, which libtpu's lock on the TPU would not let them.
    """
    return {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": _one_slice(hardware).name.removeprefix("tpu-"),
    }


def topology_options(hardware: Hardware) -> Mapping[str, Any]:
    """Return what else libtpu must know: slices, that a host is smaller, that cores are one."""
    options: dict[str, Any] = {}
    if hardware.slices > 1:
        options["num_slices"] = hardware.slices
    if hardware.chips < CHIPS_PER_HOST:
        options["chips_per_host_bounds"] = (hardware.chips, 1, 1)
    if hardware.generation == "v4":
        options["chip_config_name"] = "megacore"
    return options


def topology_name(hardware: Hardware) -> str:
    """Return libtpu's name of a slice: `v5e:16x16` for 256 chips of v5e.

    Raises:
        PluginError: There is no slice of so many chips.
    """
    prefix = _PREFIX.get(hardware.generation, hardware.generation)
    return f"{prefix}:{'x'.join(map(str, slice_shape(hardware)))}"


def slice_shape(hardware: Hardware) -> tuple[int, ...]:
    """Return how the chips of a slice are laid out: as near to a square or a cube as they can.

    Raises:
        PluginError: The number of chips is not a power of two, and so no slice that is offered.
    """
    chips = _one_slice(hardware).chips
    if chips & (chips - 1):
        near = 2 ** round(math.log2(chips))
        raise PluginError(
            f"a slice of {hardware.name} has {chips} chips; those to compile for are powers of 2",
            where=f"target {hardware.name}",
            hint=f"name {hardware.resized(near * hardware.slices, slices=hardware.slices).name}",
        )
    num_dims = 2 if hardware.generation in _TWO_DIMENSIONAL else 3
    doublings = chips.bit_length() - 1
    share, extra = divmod(doublings, num_dims)
    return tuple(2 ** (share + (index < extra)) for index in range(num_dims))


def _one_slice(hardware: Hardware) -> Hardware:
    return hardware.resized(hardware.chips // hardware.slices)
