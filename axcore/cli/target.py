"""`--target`: the hardware that a command is for, settled before jax starts."""

import os
import sys

import click

from axcore.errors import PluginError
from axcore.hardware.families import DEVICE_COUNT
from axcore.hardware.host_memory import keep_freed_memory
from axcore.plugins import Finding, Hardware, set_environment_flags
from axcore.plugins.flags import expected_hardware, present_family


def use_target(
    name: str | None, *, num_processes: int = 1, keeps_memory: bool = False
) -> Hardware | None:
    """Return the named hardware, with the environment flags that plugins want for it set.

    Where jax is to have several host devices, it is asked for them. Where no target is named, the
    flags are those for the hardware that plugins see in this machine. Processes of one run share a
    target's host devices equally.

    Args:
        name: The hardware's.
        num_processes: Of the run on this machine.
        keeps_memory: Whether a process on host processors keeps the memory that its steps free.

    Raises:
        PluginError: No plugin knows the name, flags conflict, or jax started too early to read
            them.
    """
    if name is None:
        expected = expected_hardware() or _host_devices(num_processes)
        if keeps_memory and (expected is None or expected.family == "cpu"):
            keep_freed_memory()
        if expected is not None:
            set_environment_flags(expected)
        return None
    hardware = Hardware.parse(name)
    if hardware.family == "cpu":
        if "jax" in sys.modules:
            raise PluginError(
                f"jax has started already, so {name} cannot be set up", where="--target"
            )
        if keeps_memory:
            keep_freed_memory()
        flags = os.environ.get("XLA_FLAGS", "").split()
        rest = [flag for flag in flags if not flag.startswith(DEVICE_COUNT)]
        os.environ["XLA_FLAGS"] = " ".join(rest)  # the target, being named, decides the number
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        hardware = _shared_out(hardware, num_processes)
    set_environment_flags(hardware)
    return hardware


def _host_devices(num_processes: int) -> Hardware | None:
    """Return a device for each of several processes, whose collectives want limits of time."""
    if num_processes == 1:
        return None
    return Hardware.parse(f"cpu-{num_processes}").resized(num_processes, 1)


def _shared_out(hardware: Hardware, num_processes: int) -> Hardware:
    if hardware.chips % num_processes:
        raise PluginError(
            f"{hardware.name} has {hardware.chips} devices, which {num_processes} processes cannot "
            "share equally",
            where="--target",
            hint=f"--target {hardware.family}-{num_processes}, or a multiple of it",
        )
    return hardware.resized(hardware.chips, hardware.chips // num_processes)


def check_present(hardware: Hardware | None) -> Hardware:
    """Return the hardware at hand; where a target was named, it must be that.

    Warns where the machine has hardware that JAX does not use.

    Raises:
        PluginError: The devices are others than the target.
    """
    found = Hardware.detect()
    if hardware is not None and found.name != hardware.name:
        raise PluginError(
            f"the target is {hardware.name}, but this machine has {found.name}",
            where="--target",
            hint="leave --target out, or run on that hardware",
        )
    if (unused := unused_hardware(found)) is not None:
        click.echo(f"warning: {unused.text}\n  hint:   {unused.hint}", err=True)
    return found


def unused_hardware(found: Hardware) -> Finding | None:
    """Return a warning where a plugin sees hardware in this machine and JAX found other."""
    family = present_family()
    if family is None or family.name == found.family:
        return None
    install = f"pip install '{family.install}', or " if family.install else ""
    return Finding(
        "warning",
        f"this machine has hardware of family {family.name!r}, but JAX runs on {found.name}",
        f"{install}set JAX_PLATFORMS={found.family} to use {found.family} on purpose; "
        "see docs/install.md",
    )
