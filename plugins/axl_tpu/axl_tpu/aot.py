"""The devices of a slice you do not have, to compile for."""

from collections.abc import Sequence
from typing import Any

from jax.experimental import topologies

from axcore.plugins import Hardware
from axl_tpu.topology import topology_name, topology_options


def devices(hardware: Hardware) -> Sequence[Any]:
    """Return devices that programs can be compiled for and not run on.

    Raises:
        PluginError: There is no slice of so many chips.
    """
    description = topologies.get_topology_desc(
        platform="tpu", topology_name=topology_name(hardware), **topology_options(hardware)
    )
    return description.devices
