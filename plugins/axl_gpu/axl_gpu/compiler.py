"""XLA's compiler for NVIDIA GPUs: its options, and GPUs as it knows them, to compile for.

A description is XLA's `GpuTargetConfigProto` as text. Its figures are those that the driver reports
of such a GPU; memory sizes are what the driver leaves to programs. Imports jax where it asks for
devices only: variables are set before jax starts.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from axcore.errors import PluginError
from axcore.plugins import Hardware

PIPELINED = ("all_gather", "all_reduce", "reduce_scatter")
"""Transfers of which XLA moves those of one loop iteration into another."""

FIRST_WITH_MODES = (0, 11, 1)
"""The jaxlib whose XLA has a mode for each of them in place of a flag."""


def transfers_under_products(
    hardware: Hardware, *, jaxlib: str | None = None
) -> Mapping[str, bool | str]:
    """Return the options by which XLA moves transfers between GPUs under computation.

    Args:
        hardware: What is compiled for; all GPUs have the same options.
        jaxlib: The version that compiles; the installed one if left out.

    Source: "GPU performance tips" in JAX's documentation.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", jaxlib or version("jaxlib"))[:3])
    # XLA compiles nothing for an option that it does not know, so a renamed one needs both names.
    pipelined: dict[str, bool | str] = (
        {f"xla_gpu_enable_pipelined_{one}": True for one in PIPELINED}
        if found < FIRST_WITH_MODES
        else {f"xla_gpu_pipeline_{one}": "COLLECTIVE_PIPELINING_MODE_ON" for one in PIPELINED}
    )
    return {"xla_gpu_enable_latency_hiding_scheduler": True, **pipelined}


_COMMON = (
    "threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 "
    "threads_per_core_limit: 2048 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 "
    "block_dim_limit_z: 65535 registers_per_core_limit: 65536 registers_per_block_limit: 65536"
)

# NVIDIA's architecture whitepapers of A100, H100 and Blackwell, and the table of compute
# capabilities in the CUDA C++ Programming Guide (shared memory, registers, threads).
_CHIPS = {
    "a100": (
        "shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 core_count: 108 "
        "fpus_per_core: 64 memory_bandwidth: 2039000000000 l2_cache_size: 41943040 "
        "clock_rate_ghz: 1.41 device_memory_size: 84987740160 "
        "cuda_compute_capability { major: 8 }"
    ),
    "a100-40gb": (
        "shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 core_count: 108 "
        "fpus_per_core: 64 memory_bandwidth: 1555000000000 l2_cache_size: 41943040 "
        "clock_rate_ghz: 1.41 device_memory_size: 42297786368 "
        "cuda_compute_capability { major: 8 }"
    ),
    "h100": (
        "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 core_count: 132 "
        "fpus_per_core: 128 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 "
        "clock_rate_ghz: 1.98 device_memory_size: 84929347584 "
        "cuda_compute_capability { major: 9 }"
    ),
    "h200": (
        "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 core_count: 132 "
        "fpus_per_core: 128 memory_bandwidth: 4800000000000 l2_cache_size: 52428800 "
        "clock_rate_ghz: 1.98 device_memory_size: 150110011392 "
        "cuda_compute_capability { major: 9 }"
    ),
    "b200": (
        "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 core_count: 148 "
        "fpus_per_core: 128 memory_bandwidth: 8000000000000 l2_cache_size: 132644864 "
        "clock_rate_ghz: 1.97 device_memory_size: 191503335424 "
        "cuda_compute_capability { major: 10 }"
    ),
}

_NAMES = {
    "a100": "NVIDIA A100-SXM4-80GB",
    "a100-40gb": "NVIDIA A100-SXM4-40GB",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "b200": "NVIDIA B200",
}


def environment(hardware: Hardware) -> Mapping[str, str]:
    """Return the variables by which JAX looks for no GPU, and starts on the host alone."""
    return {"JAX_PLATFORMS": "cpu"}


def target_config(hardware: Hardware) -> str:
    """Return the description of one GPU.

    Raises:
        PluginError: None is written down for the generation.
    """
    chip = _CHIPS.get(hardware.generation)
    if chip is None:
        raise PluginError(
            f"there is no description of {hardware.generation!r} to compile for; there are "
            f"{', '.join(sorted(_CHIPS))}",
            where=f"target {hardware.name}",
            hint="name one of those",
        )
    return (
        f"gpu_device_info {{ {_COMMON} {chip} }} "
        'platform_name: "CUDA" dnn_version_info { major: 9 minor: 28 } '
        f'runtime_version {{ major: 13 }} device_description_str: "{_NAMES[hardware.generation]}"'
    )


def topology(hardware: Hardware) -> str:
    """Return the layout as XLA writes it: slices, hosts in a slice, GPUs in a host."""
    return f"1x{hardware.num_hosts}x{hardware.chips_per_host}"


def devices(hardware: Hardware) -> Sequence[Any]:
    """Return devices that programs can be compiled for and not run on.

    Raises:
        PluginError: The generation is not described for the compiler.
    """
    from jax.experimental import topologies

    description = topologies.get_topology_desc(
        platform="cuda", target_config=target_config(hardware), topology=topology(hardware)
    )
    return description.devices
