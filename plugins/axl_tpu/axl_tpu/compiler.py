"""libtpu's compiler: its options, and slices by the names that it gives them, to compile for.

Imports jax where it asks for devices only: variables are set before jax starts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from axcore.errors import PluginError
from axcore.plugins import Hardware

_FUSION_LIMIT = "xla_tpu_scoped_vmem_limit_kib"

_GATHER_UNDER_PRODUCTS = {
    "xla_enable_all_gather_3d_emitter": True,
    "xla_enable_async_all_gather": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_tpu_prefer_async_allgather_to_allreduce": True,
}
"""Sharded weights are gathered while other products run.

Left to itself, libtpu writes the gather of a large slice as a sum over zeros, which waits, moves
twice the bytes and needs another copy of each weight.
"""


_SUM_UNDER_PRODUCTS = {
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
}
"""Gradients are summed over chips while other products run: most of those of a layer."""


def gather_under_products(hardware: Hardware) -> Mapping[str, bool]:
    """Return the options by which weights are gathered under products."""
    return _GATHER_UNDER_PRODUCTS


def sum_under_products(hardware: Hardware) -> Mapping[str, bool]:
    """Return the options by which gradients are summed under products."""
    return _SUM_UNDER_PRODUCTS


def wide_fusions(hardware: Hardware) -> Mapping[str, int]:
    """Return the option by which a fusion may hold more of its operands on the chip.

    The products of a layer with their norms and activations want more than libtpu's own limit of
    16 MiB, and on v6e and 7x, whose products are faster than their memory, of 32
    (`benchmarks/tpu_fusions.py`). v5p has 64 MiB on the chip, which gathers under products share:
    with 48 a step of Llama 2 7B is refused. Each doubling of the limit makes compiling slower; on
    v5e 48 MiB took three times as long, for a step that is 1.3 % shorter.
    """
    mib = {"v5p": 40, "v6e": 64, "7x": 48}.get(hardware.generation or "", 24)
    return {_FUSION_LIMIT: mib * 1024}


def weights_ahead(hardware: Hardware) -> Mapping[str, bool | int]:
    """Return the options by which a program that serves fetches weights before it needs them.

    Those are `wide_fusions`, except on v5p. There a product of few rows waits for its first bytes
    about as long as for all the others. libtpu hides that by fetching weights under earlier
    instructions if it plans with the cycles that it schedules, and if fusions leave it 40 of the
    64 MiB on the chip. On v6e it then fetches more at once than memory delivers.
    """
    limits: Mapping[str, bool | int] = wide_fusions(hardware)
    if hardware.generation != "v5p":
        return limits
    return {**limits, _FUSION_LIMIT: 24 * 1024, "xla_msa_use_bundle_aware_cost_model": True}


def products_of_one_row(hardware: Hardware) -> Mapping[str, bool]:
    """Return the option by which a row times a matrix is a product as any other.

    Left to itself, libtpu multiplies and sums such a row in the vector unit, which reads the matrix
    slower than memory delivers it: Llama 2 70B on eight chips of v6e took 33 ms for a token of one
    row, and 12 ms as products of the matrix unit.
    """
    return {"xla_tpu_enable_dot_strength_reduction": False}


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


def devices(hardware: Hardware) -> Sequence[Any]:
    """Return devices that programs can be compiled for and not run on.

    Raises:
        PluginError: There is no slice of so many chips.
    """
    from jax.experimental import topologies

    description = topologies.get_topology_desc(
        platform="tpu", topology_name=topology_name(hardware), **topology_options(hardware)
    )
    return description.devices
