"""`--target`: the hardware that a command is for, settled before jax starts."""

import os
import sys

from axcore.errors import PluginError
from axcore.plugins import Hardware

_DEVICE_COUNT = "--xla_force_host_platform_device_count"


def use_target(name: str | None) -> Hardware | None:
    """Returns the named hardware, having asked jax for as many host devices where it is host-only.

    Raises:
        PluginError: No plugin knows the name, or jax started too early to be asked.
    """
    if name is None:
        return None
    hardware = Hardware.parse(name)
    if hardware.family == "cpu":
        if "jax" in sys.modules:
            raise PluginError(
                f"jax has started already, so {name} cannot be set up", where="--target"
            )
        flags = os.environ.get("XLA_FLAGS", "").split()
        flags = [flag for flag in flags if not flag.startswith(_DEVICE_COUNT)]
        os.environ["XLA_FLAGS"] = " ".join([*flags, f"{_DEVICE_COUNT}={hardware.num_devices}"])
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return hardware


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
