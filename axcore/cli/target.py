"""`--target`: the hardware that a command is for, settled before jax starts."""

import os
import sys

from axcore.errors import PluginError
from axcore.plugins import Hardware, set_environment_flags
from axcore.plugins.core_detect import DEVICE_COUNT
from axcore.plugins.flags import expected_hardware


def use_target(name: str | None, *, num_processes: int = 1) -> Hardware | None:
    """Returns the named hardware, with the environment flags that plugins want for it set.

    Where jax is to have several host devices, it is asked for them. Where no target is named, the
    flags are those for the hardware that plugins see in this machine. Processes of one run share a
    target's host devices equally.

    Raises:
        PluginError: No plugin knows the name, flags conflict, or jax started too early to read
            them.
    """
    if name is None:
        expected = expected_hardware() or _host_devices(num_processes)
        if expected is not None:
            set_environment_flags(expected)
        return None
    hardware = Hardware.parse(name)
    if hardware.family == "cpu":
        if "jax" in sys.modules:
            raise PluginError(
                f"jax has started already, so {name} cannot be set up", where="--target"
            )
        flags = os.environ.get("XLA_FLAGS", "").split()
        rest = [flag for flag in flags if not flag.startswith(DEVICE_COUNT)]
        os.environ["XLA_FLAGS"] = " ".join(rest)  # the target, being named, decides the number
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        hardware = _shared_out(hardware, num_processes)
    set_environment_flags(hardware)
    return hardware


def _host_devices(num_processes: int) -> Hardware | None:
    """Returns a device for each of several processes, whose collectives want limits of time."""
    if num_processes == 1:
        return None
    return Hardware.parse(f"cpu-{num_processes}").resized(num_processes, 1)


def _shared_out(hardware: Hardware, num_processes: int) -> Hardware:
    if hardware.chips % num_processes:
        raise PluginError(
            f"{hardware.name} has {hardware.chips} devices, which {num_processes} processes cannot "
            "share equally",
            where="--target",
            mend=f"--target {hardware.family}-{num_processes}, or a multiple of it",
        )
    return hardware.resized(hardware.chips, hardware.chips // num_processes)


def check_present(hardware: Hardware | None) -> Hardware:
    """Returns the hardware at hand; where a target was named, it must be that.

    Raises:
        PluginError: The devices are others than the target.
    """
    found = Hardware.detect()
    if hardware is not None and found.name != hardware.name:
        raise PluginError(
            f"the target is {hardware.name}, but this machine has {found.name}",
            where="--target",
            mend="leave --target out, or run on that hardware",
        )
    return found
