"""Records of what programs are compiled with: flags, compiler options, compilers."""

from typing import ClassVar

import attrs

from axcore.hardware.hardware import Predicate, requires
from axcore.registration import (
    Record,
    Ref,
    a_callable,
    a_name,
    frozen_tuple,
    module_names,
    of_type,
    record,
)


@record(hook="environment_flags")
@attrs.frozen(kw_only=True)
class EnvironmentFlags(Record):
    """Flags that some hardware wants in an environment variable before JAX starts.

    They are merged flag by flag. What the user has set wins; two plugins that want different values
    of one flag, and flags that come after JAX has started, are errors.

    Args:
        name: Shown where two records disagree.
        variable: The environment variable, which holds `--flag=value` texts with blanks between.
        requires: From hardware to None, or why the flags are not meant for it.
        fn: A function from hardware to a mapping of flag (`--xla_...`) to value; imports no jax.
        summary: One line.

    Example:
        @hook.environment_flags
        def environment_flags():
            yield EnvironmentFlags(name="acme_overlap", variable="XLA_FLAGS",
                                   requires=requires(family="acme"),
                                   fn=Ref("axl_acme.flags:overlap"), summary="Overlap transfers")
    """

    kind: ClassVar[str] = "environment flags"

    name: str = attrs.field(validator=a_name)
    variable: str = attrs.field(validator=a_name)
    requires: Predicate = attrs.field(default=requires(), validator=a_callable)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="compiler_options")
@attrs.frozen(kw_only=True)
class CompilerOptions(Record):
    """Options that programs are compiled with for some hardware, here or ahead of time.

    Two records that want different values of one option for a program are an error.

    Args:
        name: Shown where two records disagree.
        requires: From hardware to None, or why they are not meant for it.
        fn: From hardware to a mapping of option to a str, bool, int or float; imports no jax.
        serves: True for programs by which a model serves, False for train steps; None for both.
        summary: One line.

    Example:
        @hook.compiler_options
        def compiler_options():
            yield CompilerOptions(name="acme_overlap",
                                  requires=requires(family="acme"),
                                  fn=Ref("axl_acme.compiler:options"), summary="Overlap transfers")
    """

    kind: ClassVar[str] = "compiler options"

    name: str = attrs.field(validator=a_name)
    requires: Predicate = attrs.field(default=requires(), validator=a_callable)
    fn: Ref = attrs.field(validator=of_type(Ref))
    serves: bool | None = attrs.field(default=None, validator=of_type(bool, type(None)))
    summary: str = attrs.field(validator=of_type(str))


HOST_ENVIRONMENT = Ref("axcore.hardware.families:host_environment")


@record(hook="aot_targets")
@attrs.frozen(kw_only=True)
class AotTarget(Record):
    """How a program is compiled for hardware you do not have: `axcore aot EXPERIMENT`.

    Args:
        name: Shown in reports as the compiler's name.
        requires: From hardware to None, or why it is not meant for it.
        devices: From hardware to the devices to compile for; called in a process of its own. Where
            it is left out, the host's processors are used, shown as so many devices.
        environment: From hardware to the environment variables of that process, which are set
            before JAX starts; imports no jax.
        modules: Modules without which there is no such compiler.
        install: What brings them: the argument of `pip install`.
        limits: What the compiled program does not show of the hardware; empty where the compiler
            is the hardware's own.
        summary: One line.

    Example:
        @hook.aot_targets
        def aot_targets():
            yield AotTarget(name="acme_compiler",
                            requires=requires(family="acme"), modules=("libacme",),
                            install="axl-acme[aot]", devices=Ref("axl_acme.aot:devices"),
                            environment=Ref("axl_acme.topology:environment"),
                            summary="The compiler of Acme's driver")
    """

    kind: ClassVar[str] = "compile target"

    name: str = attrs.field(validator=a_name)
    requires: Predicate = attrs.field(default=requires(), validator=a_callable)
    devices: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    environment: Ref = attrs.field(default=HOST_ENVIRONMENT, validator=of_type(Ref))
    modules: tuple[str, ...] = attrs.field(
        default=(), converter=frozen_tuple, validator=module_names
    )
    install: str = attrs.field(default="", validator=of_type(str))
    limits: str = attrs.field(default="", validator=of_type(str))
    summary: str = attrs.field(validator=of_type(str))
