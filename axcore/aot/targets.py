"""Find the compiler for a target, the environment of its process, and devices to compile for."""

import importlib.util
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from axcore.errors import PluginError
from axcore.plugins import AotTarget, Hardware, plugin_host, set_environment_flags


def find_aot_target(hardware: Hardware, records: Sequence[AotTarget] | None = None) -> AotTarget:
    """Return how to compile for `hardware`.

    Args:
        hardware: What to compile for.
        records: Who is asked; those of all plugins if left out.

    Raises:
        PluginError: No plugin can, two can, or the compiler's packages are not installed.
    """
    records = plugin_host().records(AotTarget) if records is None else records
    reasons = {record: record.requires(hardware) for record in records}
    fitting = [record for record, reason in reasons.items() if reason is None]
    if not fitting:
        tried = "; ".join(f"{one.name} ({one.plugin}) {why}" for one, why in reasons.items())
        raise PluginError(
            f"no plugin says how to compile for {hardware.name}: {tried or 'none says anything'}",
            where=f"target {hardware.name}",
            hint=f"install the plugin for {hardware.family}, or ask its authors for `aot_targets`",
        )
    if len(fitting) > 1:
        names = " and ".join(f"{one.name} ({one.plugin})" for one in fitting)
        raise PluginError(
            f"{names} both compile for {hardware.name}",
            where=f"target {hardware.name}",
            hint=f"set AXCORE_BLOCK={fitting[-1].plugin}",
        )
    _require_modules(fitting[0], hardware)
    return fitting[0]


def _require_modules(target: AotTarget, hardware: Hardware) -> None:
    missing = [name for name in target.modules if not _is_there(name)]
    if missing:
        raise PluginError(
            f"the compiler for {hardware.name}, {target.name}, is not installed: there is no "
            f"{', '.join(missing)}",
            where=f"target {hardware.name}",
            hint=f'pip install "{target.install}"',
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def compile_devices(target: AotTarget, hardware: Hardware) -> Sequence[Any]:
    """Return the devices to compile for; the host's where the target brings none. Starts jax."""
    if target.devices is not None:
        devices: Sequence[Any] = target.call("devices", hardware, returns=Sequence)
        return devices
    return host_devices(hardware)


def compile_environment(target: AotTarget, hardware: Hardware) -> Mapping[str, str]:
    """Return the environment of a process that compiles: this one's, with what is needed in it.

    What plugins want set before JAX starts, as on the hardware itself, is among it. Programs for
    hardware you do not have stay out of jax's compilation cache.
    """
    environment = dict(os.environ)
    expected = "a mapping from variable to its value, as str"
    for name, value in target.call(
        "environment", hardware, returns=Mapping, expected=expected
    ).items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise target.wrong_return("environment", {name: value}, expected)
        environment[name] = _with_flags(environment.get(name, ""), value)
    if target.devices is not None:  # then jax could not load what it kept
        environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    set_environment_flags(hardware, environment)
    return environment


def _with_flags(own: str, wanted: str) -> str:
    """Return a variable's new value; where it is made of flags, the user's others stay."""
    if not wanted.startswith("--"):
        return wanted
    named = {flag.partition("=")[0] for flag in wanted.split()}
    kept = [flag for flag in own.split() if flag.partition("=")[0] not in named]
    return " ".join((*kept, wanted))


_MAX_DEVICES = 2048
"""XLA takes any further device of a host for that of another process."""


def host_devices(hardware: Hardware) -> Sequence[Any]:
    """Return as many of the host's devices as the hardware has, to compile for.

    XLA compiles programs for more than `_MAX_DEVICES` where processes can reach one another
    only, and so this one becomes the only one of a group: call it before anything asks JAX for
    devices. Such a program does not run.
    """
    import jax  # not above: the caller may still set variables that jax reads when it is imported

    if hardware.num_devices > _MAX_DEVICES and not jax.distributed.is_initialized():
        _start_group_of_one()
    return jax.devices("cpu")[: hardware.num_devices]


def _start_group_of_one() -> None:
    import jax

    # Another process may take the port before jax binds it. That is an error, never a wrong group.
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    jax.distributed.initialize(
        address, num_processes=1, process_id=0, cluster_detection_method="deactivate"
    )
