"""Memory in use, as devices and the operating system report it."""

from collections.abc import Iterable, Mapping
from typing import Any

from axcore.hardware.process_memory import peak_resident_bytes

GIB = 2**30
_NAMES = {"device_memory_gib": "bytes_in_use", "device_memory_peak_gib": "peak_bytes_in_use"}


def memory_metrics(devices: Iterable[Any]) -> dict[str, float]:
    """Returns GiB that are and were in use: of the fullest device, and of this process.

    Args:
        devices: Those of this process; of devices that report nothing, such as host processors,
            there is no figure.
    """
    stats = [device.memory_stats() or {} for device in devices]
    found = {name: _most(stats, key) for name, key in _NAMES.items()}
    measured = {name: nbytes / GIB for name, nbytes in found.items() if nbytes is not None}
    return {**measured, "host_memory_peak_gib": peak_resident_bytes() / GIB}


def _most(stats: Iterable[Mapping[str, int]], key: str) -> int | None:
    """Returns the largest value; -1 is how a device says that it has none."""
    return max((one[key] for one in stats if one.get(key, -1) >= 0), default=None)
