"""Loading one plugin: import its module, check its hooks, call them, check what they yield.

A plugin loads whole or not at all. Whatever goes wrong is kept as its error; nothing spreads.
Config files may name the config classes of a loaded plugin, so that its runs can be read again.
"""

import importlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import attrs
import pluggy

from axcore.config import trust_package
from axcore.errors import PluginError
from axcore.plugins import hookspecs
from axcore.plugins.hooks import HOOKS, location, refuse_parameters, unknown_hook
from axcore.plugins.plugin import Plugin
from axcore.plugins.record import Record


def new_manager() -> pluggy.PluginManager:
    """Returns a pluggy manager that knows axcore's hooks and no plugin."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def load(plugin: Plugin, manager: pluggy.PluginManager) -> Plugin:
    """Returns a plugin that was found as loaded, or as failed with its error."""
    started = time.perf_counter()
    try:
        module = importlib.import_module(plugin.candidate.module)
        plugin = attrs.evolve(plugin, import_time_s=time.perf_counter() - started)
        check_marks(module, manager)
        manager.register(module, plugin.name)
        hooks = dict(_implementations(plugin.name, manager))
        plugin = attrs.evolve(plugin, hooks=tuple(hooks))
        records = [
            record.stamped(plugin.name)
            for name, functions in hooks.items()
            for function in functions
            for record in _yielded(function, name)
        ]
        _refuse_repeats(records)
    except (Exception, SystemExit) as error:
        return plugin.failed(error)
    trust_package(plugin.candidate.module.partition(".")[0], functions=False)
    by_kind_and_key = sorted(records, key=lambda record: (record.kind, record.key))
    return attrs.evolve(plugin, state="loaded", records=tuple(by_kind_and_key))


def check_marks(module: ModuleType, manager: pluggy.PluginManager) -> None:
    """Raises PluginError where pluggy would misread, or leave out, a function of the module."""
    for name, value in list(vars(module).items()):
        marks = manager.parse_hookimpl_opts(module, name)
        if marks is not None:
            hook_name = marks.get("specname") or name
            if hook_name not in HOOKS:
                raise unknown_hook(hook_name, where=location(value))
            refuse_parameters(value, hook_name)
        elif name in HOOKS and inspect.isfunction(value) and value.__module__ == module.__name__:
            raise PluginError(
                f"{module.__name__}.{name} has the name of a hook and is not marked as one",
                where=location(value),
                mend=f"write @hook.{name} above it, or rename it",
            )


def _implementations(
    plugin_name: str, manager: pluggy.PluginManager
) -> Iterator[tuple[str, list[Callable[[], Any]]]]:
    for name in sorted(HOOKS):
        found = getattr(manager.hook, name).get_hookimpls()
        functions = [impl.function for impl in found if impl.plugin_name == plugin_name]
        if functions:
            yield name, sorted(functions, key=lambda function: function.__qualname__)


def _yielded(function: Callable[[], Any], hook_name: str) -> Iterator[Record]:
    wanted = HOOKS[hook_name].record
    result = function()
    if not isinstance(result, Iterable):
        raise PluginError(
            f"hook {hook_name} returned {result!r}; expected an iterable of {wanted.__name__}",
            where=location(function),
            mend=f"yield each {wanted.__name__}",
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
                mend="give each a key of its own",
            )
        seen.add((record.kind, record.key))
