"""Checks over all plugins together: no record twice, no kernel for an op that nobody declares."""

from collections import defaultdict
from collections.abc import Sequence

from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.plugins.plugin import Plugin
from axcore.plugins.plugin_filter import BLOCK
from axcore.plugins.records.kernels import Kernel, Op
from axcore.registration.returns import CORE


def refuse_conflicts(plugins: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """Return the plugins with those that conflict failed: never the core, else all involved."""
    return _refuse_unknown_ops(_refuse_duplicates(plugins))


def _refuse_duplicates(plugins: Sequence[Plugin]) -> tuple[Plugin, ...]:
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for plugin in plugins:
        for record in plugin.records:
            owners[record.kind, record.key].append(plugin.name)
    errors: dict[str, PluginError] = {}
    for (kind, key), names in owners.items():
        if len(names) > 1:
            brought = " and ".join(names)
            error = PluginError(
                f"{kind} {key!r} is brought by {brought}",
                hint=" or ".join(f"set {BLOCK}={name}" for name in names if name != CORE),
            )
            errors |= {name: error for name in names if name != CORE}
    return tuple(_failed_if(plugin, errors.get(plugin.name)) for plugin in plugins)


def _refuse_unknown_ops(plugins: Sequence[Plugin]) -> tuple[Plugin, ...]:
    ops = {record.name for plugin in plugins for record in plugin.records if isinstance(record, Op)}
    return tuple(_failed_if(plugin, _unknown_op(plugin, ops)) for plugin in plugins)


def _unknown_op(plugin: Plugin, ops: set[str]) -> PluginError | None:
    for record in plugin.records:
        if isinstance(record, Kernel) and record.op not in ops:
            return PluginError(
                f"kernel {record.name!r} is for op {record.op!r}, which nobody declares; "
                f"{suggest_names(record.op, ops)}",
                where=f"kernel {record.key} of plugin {plugin.name!r}",
                hint="correct the op's name, or install the plugin that declares it",
            )
    return None


def _failed_if(plugin: Plugin, error: PluginError | None) -> Plugin:
    return plugin if error is None else plugin.failed(error)
