"""The core's own hardware family: recognising it, and asking XLA for several of its devices.

They also replace devices of hardware that brings no compiler of its own.
"""

from collections.abc import Mapping

from axcore.hardware.hardware import Hardware

DEVICE_COUNT = "--xla_force_host_platform_device_count"
COLLECTIVE_TIMEOUT = "--xla_cpu_collective_timeout_seconds"
COLLECTIVE_TIMEOUT_S = 600


def detect_cpu(platform: str, device_kind: str) -> str | None:
    """Return the one generation of host processors, which has no name, or None."""
    return "" if platform == "cpu" else None


def device_count_flag(hardware: Hardware) -> Mapping[str, str]:
    """Return the flag by which XLA shows as many devices as a host of the hardware has.

    Of several processes, one that is stopped would keep the others waiting in a collective forever
    without a limit.
    """
    flags = {DEVICE_COUNT: str(hardware.num_devices // hardware.num_hosts)}
    if hardware.num_hosts > 1:
        flags[COLLECTIVE_TIMEOUT] = str(COLLECTIVE_TIMEOUT_S)
    return flags


def host_environment(hardware: Hardware) -> Mapping[str, str]:
    """Return the variables of one process in which the host shows all devices of `hardware`."""
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{DEVICE_COUNT}={hardware.num_devices}"}
