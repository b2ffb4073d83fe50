"""The devices of GPUs you do not have, to compile for."""

from collections.abc import Sequence
from typing import Any

from jax.experimental import topologies

from axcore.plugins import Hardware
from axl_gpu.topology import target_config, topology


def devices(hardware: Hardware) -> Sequence[Any]:
    """Return devices that programs can be compiled for and not run on.

    Raises:
        PluginError: The generation is not described for the compiler.
    """
    description = topologies.get_topology_desc(
        platform="cuda", target_config=target_config(hardware), topology=topology(hardware)
    )
    return description.devices
