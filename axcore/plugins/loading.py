"""Loading one plugin: import its module, check its hooks, call them, check what they yield.

A plugin loads whole or not at all. Whatever goes wrong is kept as its error; nothing spreads. One
that hangs is given up after a time limit, and one that imports jax is refused.
Config files may name the config classes of a loaded plugin, so that its runs can be read again.
"""

import functools
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

import attrs
import pluggy

from axcore.config import trust_package
from axcore.errors import PluginError
from axcore.plugins.discovery import BLOCK, Plugin
from axcore.plugins.hooks import PROJECT, location, refuse_parameters, unknown_hook
from axcore.plugins.records import Hooks
from axcore.plugins.time_limit import TakesTooLongError, seconds_of, within
from axcore.registration import Record

_HOOKS = Hooks.decorators()

T = TypeVar("T")

TIMEOUT = "AXCORE_PLUGIN_TIMEOUT_S"
"""The environment variable that gives every plugin another number of seconds to load."""

DEFAULT_TIMEOUT_S = 10.0


def new_manager() -> pluggy.PluginManager:
    """Return a pluggy manager that knows axcore's hooks and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks.specs())
    return manager


def timeout_s(environment: Mapping[str, str]) -> float:
    """Return how long a plugin may take to load.

    Raises:
        PluginError: `AXCORE_PLUGIN_TIMEOUT_S` is not a number above 0.
    """
    return seconds_of(environment, TIMEOUT, DEFAULT_TIMEOUT_S)


def load(
    plugin: Plugin, manager: pluggy.PluginManager, *, timeout_s: float | None = None
) -> Plugin:
    """Return a plugin that was found as loaded, or as failed with its error.

    Args:
        plugin: What was found.
        manager: Which it is registered with.
        timeout_s: How long its module may take to import, and its hooks to yield; no matter how
            long, in this thread, where None.
    """
    timed = functools.partial(_timed, plugin, timeout_s)
    started = time.perf_counter()
    had_jax = "jax" in sys.modules
    try:
        module = timed("import", lambda: importlib.import_module(plugin.candidate.module))
        plugin = attrs.evolve(plugin, import_time_s=time.perf_counter() - started)
        check_marks(module, manager)
        manager.register(module, plugin.name)
        hooks = dict(_implementations(plugin.name, manager))
        plugin = attrs.evolve(plugin, hooks=tuple(hooks))
        records = timed("registration", lambda: _records(plugin.name, hooks))
        _refuse_repeats(records)
        if "jax" in sys.modules and not had_jax:
            raise _imports_jax(plugin)
    except (Exception, SystemExit) as error:
        return plugin.failed(error)
    trust_package(plugin.candidate.module.partition(".")[0], functions=False)
    by_kind_and_key = sorted(records, key=lambda record: (record.kind, record.key))
    return attrs.evolve(plugin, state="loaded", records=tuple(by_kind_and_key))


def _timed(plugin: Plugin, limit_s: float | None, doing: str, call: Callable[[], T]) -> T:
    if limit_s is None:
        return call()
    try:
        return within(limit_s, call, package=plugin.candidate.module.partition(".")[0])
    except TakesTooLongError as place:
        raise PluginError(
            f"the {doing} of plugin {plugin.name!r} has not finished after {limit_s:g} s; "
            f"it is at {place}",
            where=f"module {plugin.candidate.module}",
            hint=f"set {TIMEOUT}={6 * limit_s:g} where the disk is slow, or {BLOCK}={plugin.name}",
        ) from None


def _records(plugin_name: str, hooks: Mapping[str, list[Callable[[], Any]]]) -> list[Record]:
    return [
        record.stamped(plugin_name)
        for name, functions in hooks.items()
        for function in functions
        for record in _yielded(function, name)
    ]


def _imports_jax(plugin: Plugin) -> PluginError:
    return PluginError(
        f"plugin {plugin.name!r} imports jax when it is loaded, which every command would wait "
        "for, and which would fix jax's settings before a target can choose them",
        where=f"module {plugin.candidate.module}",
        hint="name code by Ref('package.module:name'), and import jax, and the packages of axcore "
        "that need it, in that module",
    )


def check_marks(module: ModuleType, manager: pluggy.PluginManager) -> None:
    """Raise PluginError where pluggy would misread, or leave out, a function of the module."""
    for name, value in list(vars(module).items()):
        marks = manager.parse_hookimpl_opts(module, name)
        if marks is not None:
            hook_name = marks.get("specname") or name
            if hook_name not in _HOOKS:
                raise unknown_hook(hook_name, _HOOKS, where=location(value))
            refuse_parameters(value, hook_name)
        elif name in _HOOKS and inspect.isfunction(value) and value.__module__ == module.__name__:
            raise PluginError(
                f"{module.__name__}.{name} has the name of a hook and is not marked as one",
                where=location(value),
                hint=f"write @hook.{name} above it, or rename it",
            )


def _implementations(
    plugin_name: str, manager: pluggy.PluginManager
) -> Iterator[tuple[str, list[Callable[[], Any]]]]:
    for name in sorted(_HOOKS):
        found = getattr(manager.hook, name).get_hookimpls()
        functions = [impl.function for impl in found if impl.plugin_name == plugin_name]
        if functions:
            yield name, sorted(functions, key=lambda function: function.__qualname__)


def _yielded(function: Callable[[], Any], hook_name: str) -> Iterator[Record]:
    wanted = _HOOKS[hook_name].record
    result = function()
    if not isinstance(result, Iterable):
        raise PluginError(
            f"hook {hook_name} returned {result!r}; expected an iterable of {wanted.__name__}",
            where=location(function),
            hint=f"yield each {wanted.__name__}",
        )
    for record in result:
        if not isinstance(record, wanted):
            raise PluginError(
                f"hook {hook_name} yielded {record!r}; expected {wanted.__name__}, "
                f"got {type(record).__name__}",
                where=location(function),
            )
        yield record


def _refuse_repeats(records: list[Record]) -> None:
    seen: set[tuple[str, str]] = set()
    for record in records:
        if (record.kind, record.key) in seen:
            raise PluginError(
                f"plugin {record.plugin!r} brings {record.kind} {record.key!r} twice",
                where=f"{record.kind} {record.key}",
                hint="give each a key of its own",
            )
        seen.add((record.kind, record.key))
