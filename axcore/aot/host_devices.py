"""The host's processors, shown as the devices of some hardware."""

import socket
from collections.abc import Sequence
from typing import Any

import jax

from axcore.plugins import Hardware

DEVICES_OF_A_PROCESS = 2048
"""XLA takes any further device of a host for that of another process."""


def host_devices(hardware: Hardware) -> Sequence[Any]:
    """Returns as many of the host's devices as the hardware has, to compile for.

    XLA compiles programs for more than `DEVICES_OF_A_PROCESS` where processes can reach one another
    only, and so this one becomes the only one of a group: call it before anything asks JAX for
    devices. Such a program does not run.
    """
    if hardware.num_devices > DEVICES_OF_A_PROCESS and not jax.distributed.is_initialized():
        _start_group_of_one()
    return jax.devices("cpu")[: hardware.num_devices]


def _start_group_of_one() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    jax.distributed.initialize(
        address, num_processes=1, process_id=0, cluster_detection_method="deactivate"
    )
