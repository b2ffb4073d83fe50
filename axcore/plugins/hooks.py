"""`hook`: the typed decorators that mark a plugin's functions, `@hook.kernels` for example.

Each is a plain pluggy marker underneath; what is added is that type checkers see which records a
function must yield, and that functions pluggy would quietly misread are refused.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import pluggy

from axcore.config import name_the_known
from axcore.errors import PluginError
from axcore.plugins import hookspecs
from axcore.plugins.compiling import AotTarget, CompilerOptions
from axcore.plugins.families import HardwareFamily
from axcore.plugins.feature import Feature
from axcore.plugins.launching import JobLauncher
from axcore.plugins.mesh_rules import MeshRule
from axcore.plugins.record import Record
from axcore.plugins.records import (
    Command,
    DataSource,
    DataTokenizer,
    DoctorCheck,
    EnvironmentFlags,
    Experiment,
    Kernel,
    LayerVariant,
    MetricWriter,
    Modifier,
    Op,
    RunObserver,
)
from axcore.plugins.scheme import QuantizationScheme
from axcore.plugins.storing import CheckpointStorage

R = TypeVar("R", bound=Record)

_mark = pluggy.HookimplMarker(hookspecs.PROJECT)


class UnknownHookError(PluginError, AttributeError):
    """A plugin uses a hook that does not exist."""


class HookDecorator(Generic[R]):
    """Marks a function of no arguments as yielding records of one type."""

    def __init__(self, spec: Callable[[], Iterable[R]], record: type[R]) -> None:
        self.name = spec.__name__
        self.record = record
        self.__doc__ = spec.__doc__

    def __call__(self, fn: Callable[[], Iterable[R]]) -> Callable[[], Iterable[R]]:
        """Returns `fn`, marked.

        Raises:
            PluginError: `fn` takes parameters; with defaults, pluggy would ignore them.
        """
        refuse_parameters(fn, self.name)
        return _mark(fn, specname=self.name)


class Hooks:
    """One decorator a hook; what each asks for is in `axcore.plugins.hookspecs`."""

    hardware_families = HookDecorator(hookspecs.hardware_families, HardwareFamily)
    environment_flags = HookDecorator(hookspecs.environment_flags, EnvironmentFlags)
    compiler_options = HookDecorator(hookspecs.compiler_options, CompilerOptions)
    aot_targets = HookDecorator(hookspecs.aot_targets, AotTarget)
    mesh_rules = HookDecorator(hookspecs.mesh_rules, MeshRule)
    ops = HookDecorator(hookspecs.ops, Op)
    kernels = HookDecorator(hookspecs.kernels, Kernel)
    layer_variants = HookDecorator(hookspecs.layer_variants, LayerVariant)
    modifiers = HookDecorator(hookspecs.modifiers, Modifier)
    quantization_schemes = HookDecorator(hookspecs.quantization_schemes, QuantizationScheme)
    data_sources = HookDecorator(hookspecs.data_sources, DataSource)
    tokenizers = HookDecorator(hookspecs.tokenizers, DataTokenizer)
    metric_writers = HookDecorator(hookspecs.metric_writers, MetricWriter)
    observers = HookDecorator(hookspecs.observers, RunObserver)
    checkpoint_storages = HookDecorator(hookspecs.checkpoint_storages, CheckpointStorage)
    launchers = HookDecorator(hookspecs.launchers, JobLauncher)
    experiments = HookDecorator(hookspecs.experiments, Experiment)
    features = HookDecorator(hookspecs.features, Feature)
    commands = HookDecorator(hookspecs.commands, Command)
    doctor_checks = HookDecorator(hookspecs.doctor_checks, DoctorCheck)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_hook(name)


hook = Hooks()

HOOKS: dict[str, HookDecorator[Any]] = {
    name: value for name, value in vars(Hooks).items() if isinstance(value, HookDecorator)
}
"""Every hook by its name."""


def unknown_hook(name: str, where: str | None = None) -> UnknownHookError:
    """Returns the error for a hook that does not exist, with the nearest that does."""

    return UnknownHookError(
        f"there is no hook {name!r}; {name_the_known(name, HOOKS)}",
        where=where,
        mend="use a hook of axcore.plugins.hookspecs",
    )


def refuse_parameters(fn: Callable[..., Any], hook_name: str) -> None:
    """Raises PluginError where `fn` has parameters: registration hooks take none."""
    parameters = inspect.signature(fn).parameters
    if parameters:
        raise PluginError(
            f"hook {hook_name} takes no arguments, but {fn.__qualname__} has parameters "
            f"{', '.join(map(repr, parameters))}",
            where=location(fn),
            mend="remove them; pluggy would leave out those with defaults without a word",
        )


def location(fn: Callable[..., Any]) -> str:
    """Returns `file:line` of a function."""
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)
