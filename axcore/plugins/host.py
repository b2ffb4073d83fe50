"""`PluginHost`: every plugin that is installed, what became of it, and all records brought.

Tools ask the host and show what is broken; runs call `require_healthy()` first and stop there.
"""

import functools
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import attrs

from axcore import __version__
from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.hardware.families import FamilyLookup, HardwareFamily
from axcore.hardware.hardware import attach_lookup
from axcore.plugins.discovery import (
    BLOCK,
    LEVEL,
    Plugin,
    PluginCandidate,
    PluginFilter,
    discover,
    survey,
)
from axcore.plugins.loading import load, new_manager, timeout_s
from axcore.plugins.records.kernels import Kernel, Op
from axcore.registration import CORE, Record, note_owner, wrong_return

R = TypeVar("R", bound=Record)

_CORE = PluginCandidate(
    name=CORE,
    level=LEVEL,
    module="axcore.plugins.builtin",
    distribution="axcore",
    version=__version__,
)


@attrs.frozen(kw_only=True)
class PluginHost:
    """The plugins of one process.

    Args:
        installed: Every plugin, the core first, then by name.
        plugin_filter: What the environment allows and blocks.
        problem: What is wrong with those variables themselves, or None.
    """

    installed: tuple[Plugin, ...]
    plugin_filter: PluginFilter = attrs.field(factory=PluginFilter)
    problem: PluginError | None = attrs.field(default=None, eq=False)
    _records: tuple[Record, ...] = attrs.field(init=False, eq=False, repr=False)

    @_records.default
    def _sorted_records(self) -> tuple[Record, ...]:
        # Once for all: each choice of a kernel asks for them.
        found = (record for plugin in self.installed for record in plugin.records)
        return tuple(sorted(found, key=lambda record: record.key))

    def plugins(self) -> tuple[Plugin, ...]:
        """Return every plugin, whatever its state; the core first, then by name."""
        return self.installed

    def plugin(self, name: str) -> Plugin:
        """Return the plugin of that name.

        Raises:
            PluginError: None is installed.
        """
        for plugin in self.installed:
            if plugin.name == name:
                return plugin
        known = [plugin.name for plugin in self.installed]
        raise PluginError(f"no plugin {name!r} is installed; {suggest_names(name, known)}")

    def records(self, kind: type[R]) -> tuple[R, ...]:
        """Return all records of a kind that loaded plugins brought, sorted by key."""
        return tuple(record for record in self._records if isinstance(record, kind))

    def require_healthy(self) -> None:
        """Let a run continue only where nothing that is installed and not blocked is broken.

        Raises:
            PluginError: Naming all that is broken, and the `AXCORE_BLOCK=...` that would start.
        """
        if self.problem is not None:
            raise self.problem
        broken = [plugin for plugin in self.installed if plugin.is_broken]
        if broken:
            lines = [f"plugin {plugin.name} {plugin.state}: {plugin.trouble}" for plugin in broken]
            names = ",".join(sorted(self.plugin_filter.block | {plugin.name for plugin in broken}))
            errors = [one.error for one in broken if isinstance(one.error, PluginError)]
            places = [f"distribution {plugin.candidate.distribution}" for plugin in broken]
            hints = [error.hint for error in errors if error.hint]
            hints += [
                f"repair or uninstall what is broken (`axcore plugins -v` shows more), "
                f"or start without it: {BLOCK}={names}"
            ]
            raise PluginError(
                "\n".join(lines),
                where=", ".join([*places, *(error.where for error in errors if error.where)]),
                hint="\n".join(dict.fromkeys(hints)),
            ) from broken[0].error

    def fingerprint(self) -> str:
        """Return a digest of versions and of what is loaded; equal in all processes of a run."""
        return hashlib.sha256("\n".join(self.fingerprint_lines()).encode()).hexdigest()[:16]

    def fingerprint_lines(self) -> tuple[str, ...]:
        """Return what the fingerprint is made of, to show where two processes differ."""
        packages = [f"package {name} {_version(name)}" for name in ("jax", "jaxlib")]
        loaded = [
            f"plugin {plugin.name} {plugin.candidate.distribution} {plugin.candidate.version}"
            for plugin in self.installed
            if plugin.state == "loaded"
        ]
        records = [
            f"{record.kind} {record.key} of {plugin.name}"
            for plugin in self.installed
            for record in plugin.records
        ]
        return (*packages, *loaded, *records)


def load_host(
    environment: Mapping[str, str] | None = None,
    candidates: Sequence[PluginCandidate] | None = None,
) -> PluginHost:
    """Return a new host, with everything that may load loaded.

    Args:
        environment: Where `AXCORE_PLUGINS`, `AXCORE_BLOCK` and `AXCORE_PLUGIN_TIMEOUT_S` are read;
            the process's if left out.
        candidates: What is installed; read from metadata if left out.
    """
    environment = os.environ if environment is None else environment
    plugin_filter = PluginFilter.from_environment(environment)
    limit_s = timeout_s(environment)
    surveyed = survey(discover() if candidates is None else candidates, plugin_filter)
    manager = new_manager()
    core = load(Plugin(candidate=_CORE), manager)
    if core.error is not None:
        raise core.error
    rest = (
        load(one, manager, timeout_s=limit_s) if one.state == "found" else one for one in surveyed
    )
    installed = refuse_conflicts((core, *rest))
    if installed[0].error is not None:
        raise installed[0].error
    return PluginHost(
        installed=installed,
        plugin_filter=plugin_filter,
        problem=plugin_filter.problem(plugin.name for plugin in surveyed),
    )


@functools.cache
def plugin_host() -> PluginHost:
    """Return the host of this process, loaded once. `plugin_host.cache_clear()` forgets it."""
    return load_host()


attach_lookup(FamilyLookup(lambda: plugin_host().records(HardwareFamily)))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


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


def plugin_of(cls: type) -> str:
    """Return the name of the plugin whose package a class is in; empty where it is none's."""
    package = cls.__module__.partition(".")[0]
    owners = [
        plugin.name
        for plugin in plugin_host().plugins()
        if plugin.candidate.module.partition(".")[0] == package
    ]
    return owners[0] if owners else ""


@contextmanager
def attributed(owner: object, method: str) -> Iterator[None]:
    """Let exceptions of an object's method through, with a note of the plugin of its class.

    Raises:
        PluginError: The method wants to end the process.
    """
    try:
        yield
    except Exception as error:
        note_owner(error, _named(owner, method), plugin_of(type(owner)))
        raise
    except SystemExit as error:  # would end axcore without a word
        raise wrong_method_return(owner, method, error, "a value", verb="raised") from error


def wrong_method_return(
    owner: object, method: str, value: Any, expected: str, *, verb: str = "returned"
) -> PluginError:
    """Return the error for what a method of an object returned, with the plugin of its class."""
    plugin = plugin_of(type(owner))
    return wrong_return(_named(owner, method), value, expected, plugin=plugin, verb=verb)


def of_plugin(owner: object) -> str:
    """Return " of plugin 'NAME'" for an object whose class a plugin brings, else nothing."""
    plugin = plugin_of(type(owner))
    return "" if plugin in ("", CORE) else f" of plugin {plugin!r}"


def _named(owner: object, method: str) -> str:
    cls = type(owner)
    return f"{cls.__module__}:{cls.__qualname__}.{method}{of_plugin(owner)}"


_MOST = 8
"""Differences shown; two environments can differ in hundreds of lines."""


def first_difference(first: Sequence[str], own: Sequence[str]) -> str:
    """Return what a process lacks and has in addition to the first, empty where they are the same.

    Args:
        first: What process 0 is made of, as `PluginHost.fingerprint_lines` says.
        own: What the process in question is made of.
    """
    missing, more = sorted(set(first) - set(own)), sorted(set(own) - set(first))
    shown = [f"lacks {line!r}" for line in missing] + [f"has {line!r}" for line in more]
    rest = f" and {len(shown) - _MOST} more" if len(shown) > _MOST else ""
    return ", ".join(shown[:_MOST]) + rest


def require_consistency(differences: Sequence[str]) -> None:
    """Let a run continue only where all processes say the same of themselves.

    Args:
        differences: What `first_difference` says about each process, in their order.

    Raises:
        PluginError: Naming the processes that differ from the first, and in what.
    """
    problems = [f"process {process} {text}" for process, text in enumerate(differences) if text]
    if problems:
        raise PluginError(
            "the processes of this run differ:\n" + "\n".join(problems),
            where="compared with process 0",
            hint="install the same versions and code everywhere, and set the same variables",
        )
