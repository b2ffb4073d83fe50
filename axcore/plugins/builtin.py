"""What the core itself brings, through the same hooks as everybody, under the name `core`.

Each package registers its own things in its `registrations.py`, next to the code that they name, in
the form of a plugin's module. Here is what brings these together, and what the packages below
`axcore.plugins`, which cannot import its hooks, would register.
"""

import importlib.util
from collections.abc import Iterator
from importlib.machinery import PathFinder

import axcore
from axcore.errors import PluginError
from axcore.hardware.hardware import Hardware, requires
from axcore.plugins.records import AotTarget, EnvironmentFlags, HardwareFamily, MeshRule, hook
from axcore.registration import Ref

PACKAGES = (
    "checkpoint",
    "cli",
    "complexity",
    "data",
    "environments",
    "evaluation",
    "experiments",
    "interop",
    "launch",
    "layers",
    "models",
    "modifiers",
    "ops",
    "rewards",
    "rollouts",
    "runs",
    "tasks",
    "trainer",
)
"""The packages of axcore that have a `registrations.py`."""


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """Any machine without an accelerator; `cpu-8` is 8 JAX devices in one process."""
    yield HardwareFamily(
        name="cpu",
        hosts=(Hardware(family="cpu", features={"int8"}),),
        detect=Ref("axcore.hardware.families:detect_cpu"),
        summary="Host processors, or devices that XLA fakes on them",
        is_one_host=True,
    )


@hook.environment_flags
def environment_flags() -> Iterator[EnvironmentFlags]:
    """As many devices on the host's processors as a target names."""
    yield EnvironmentFlags(
        name="cpu_devices",
        variable="XLA_FLAGS",
        requires=requires(family="cpu"),
        fn=Ref("axcore.hardware.families:device_count_flag"),
        summary="XLA shows the host's processors as several devices",
    )


@hook.aot_targets
def aot_targets() -> Iterator[AotTarget]:
    """The host's processors, as many as a target names."""
    yield AotTarget(
        name="host",
        requires=requires(family="cpu"),
        summary="XLA's compiler for the host's processors",
    )


@hook.mesh_rules
def mesh_rules() -> Iterator[MeshRule]:
    """Fully sharded over whatever devices there are."""
    yield MeshRule(match="cpu-*", mesh={"fsdp": -1})


def _collect(package: str) -> None:
    """Take the hooks of a package's `registrations.py` into this module, where pluggy reads them.

    A plain import would first run the package's `__init__`, which imports jax in most of them. So
    the file is found and run by itself.
    """
    name = f"axcore.{package}.registrations"
    spec = PathFinder.find_spec(name, [f"{folder}/{package}" for folder in axcore.__path__])
    if spec is None or spec.loader is None:
        raise PluginError(f"there is no module {name}", hint="install axcore again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for hook_name, function in vars(module).items():
        if hook_name in hook.decorators():
            globals()[f"{package}_{hook_name}"] = function


for _package in PACKAGES:
    _collect(_package)
