"""The records about compilers: how to compile for hardware that is not here, and with what options.

Both name their code by a `Ref`, so that making a record imports nothing.
"""

from typing import Any, ClassVar

import attrs

from axcore.plugins.fields import a_callable, a_name, frozen_tuple, mismatch, of_type
from axcore.plugins.predicates import on
from axcore.plugins.record import Record
from axcore.plugins.records import Predicate
from axcore.plugins.ref import Ref

HOST_DEVICES = Ref("axcore.aot.host_devices:host_devices")
HOST_ENVIRONMENT = Ref("axcore.plugins.core_detect:host_environment")


def _module_names(target: Any, attribute: Any, value: Any) -> None:
    of_type(tuple)(target, attribute, value)
    for name in value:
        if not isinstance(name, str):
            raise mismatch(target, attribute, value, expected="a tuple of modules' names")


@attrs.frozen(kw_only=True)
class AotTarget(Record):
    """How a program is compiled for hardware that is not here: `axcore aot EXPERIMENT`.

    Args:
        name: Shown in reports as the compiler's name.
        on: From hardware to None, or why it is not meant for it.
        devices: From hardware to the devices to compile for; called in a process of its own. Where
            it is left out, the host's processors stand in, shown as so many devices.
        environment: From hardware to the environment variables of that process, which are set
            before JAX starts; imports no jax.
        modules: Modules without which there is no such compiler.
        install: What brings them: the argument of `pip install`.
        limits: What the compiled program does not tell of the hardware; empty where the compiler
            is the hardware's own.
        summary: One line.
    """

    kind: ClassVar[str] = "compile target"

    name: str = attrs.field(validator=a_name)
    on: Predicate = attrs.field(default=on(), validator=a_callable)
    devices: Ref = attrs.field(default=HOST_DEVICES, validator=of_type(Ref))
    environment: Ref = attrs.field(default=HOST_ENVIRONMENT, validator=of_type(Ref))
    modules: tuple[str, ...] = attrs.field(
        default=(), converter=frozen_tuple, validator=_module_names
    )
    install: str = attrs.field(default="", validator=of_type(str))
    limits: str = attrs.field(default="", validator=of_type(str))
    summary: str = attrs.field(validator=of_type(str))


@attrs.frozen(kw_only=True)
class CompilerOptions(Record):
    """Options that a train step is compiled with for some hardware, here or ahead of time.

    Args:
        name: Shown where two records disagree.
        on: From hardware to None, or why they are not meant for it.
        fn: From hardware to a mapping of option to a str, bool, int or float; imports no jax.
        summary: One line.
    """

    kind: ClassVar[str] = "compiler options"

    name: str = attrs.field(validator=a_name)
    on: Predicate = attrs.field(default=on(), validator=a_callable)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
