"""Compilers of hardware that is not here, for tests: which one, where it runs, what it lacks."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from axcore.errors import PluginError
from axcore.plugins import AotTarget, Hardware, plugin_host


def compiler_of(target: str) -> tuple[AotTarget, Hardware]:
    """Returns the compiler for a target, and the target as hardware.

    Raises:
        PluginError: No plugin brings one, or its packages are not installed.
    """
    hardware = Hardware.parse(target)
    found = [one for one in plugin_host().records(AotTarget) if one.on(hardware) is None]
    if not found:
        raise PluginError(f"no plugin says how to compile for {hardware.name}")
    missing = [name for name in found[0].modules if not _is_there(name)]
    if missing:
        raise PluginError(
            f"compiling for {hardware.name} needs {', '.join(missing)}, not installed here",
            mend=f"pip install '{found[0].install}'",
        )
    return found[0], hardware


def environment_of(target: str) -> Mapping[str, str]:
    """Returns the environment variables of a process that compiles for a target.

    Raises:
        PluginError: As `compiler_of` does.
    """
    compiler, hardware = compiler_of(target)
    environment: Mapping[str, str] = compiler.environment.resolve()(hardware)
    return environment


def devices_of(target: str) -> Sequence[Any]:
    """Returns the target's devices, to compile for; this process must have that environment.

    Raises:
        PluginError: As `compiler_of` does.
    """
    compiler, hardware = compiler_of(target)
    devices: Sequence[Any] = compiler.devices.resolve()(hardware)
    return devices


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
