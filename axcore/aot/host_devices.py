"""The host's processors, shown as the devices of some hardware."""

from collections.abc import Sequence
from typing import Any

import jax

from axcore.plugins import Hardware


def host_devices(hardware: Hardware) -> Sequence[Any]:
    """Returns as many of the host's devices as the hardware has."""
    return jax.devices("cpu")[: hardware.num_devices]
