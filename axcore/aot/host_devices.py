"""The host's processors, shown as the devices of some hardware."""

from collections.abc import Sequence
from typing import Any

import jax

from axcore.errors import AotError
from axcore.plugins import Hardware

MOST_DEVICES = 2048
"""XLA takes any further device of a host for that of another process."""


def host_devices(hardware: Hardware) -> Sequence[Any]:
    """Returns as many of the host's devices as the hardware has.

    Raises:
        AotError: It has more than a host can be shown as.
    """
    if hardware.num_devices > MOST_DEVICES:
        raise AotError(
            f"{hardware.name} has {hardware.num_devices:,} devices; the host, which stands in for "
            f"them, can be shown as {MOST_DEVICES:,} at most",
            where=f"target {hardware.name}",
            mend="name fewer chips; what a device holds changes little where layers are not split "
            "any further",
        )
    return jax.devices("cpu")[: hardware.num_devices]
