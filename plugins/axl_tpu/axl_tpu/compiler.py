"""Options that programs for TPUs are compiled with."""

from collections.abc import Mapping

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
