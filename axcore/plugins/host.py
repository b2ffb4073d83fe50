"""`PluginHost`: every plugin that is installed, what became of it, and all records brought.

Tools ask the host and show what is broken; runs call `require_healthy()` first and stop there.
"""

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import attrs

from axcore import __version__
from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.hardware.families import HardwareFamily
from axcore.hardware.hardware import attach_lookup
from axcore.hardware.targets import FamilyLookup
from axcore.plugins.conflicts import refuse_conflicts
from axcore.plugins.discovery import LEVEL, PluginCandidate, discover
from axcore.plugins.loading import load, new_manager, timeout_s
from axcore.plugins.plugin import Plugin, survey
from axcore.plugins.plugin_filter import BLOCK, PluginFilter
from axcore.registration.record import Record
from axcore.registration.returns import CORE

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
        found = [
            record
            for plugin in self.installed
            for record in plugin.records
            if isinstance(record, kind)
        ]
        return tuple(sorted(found, key=lambda record: record.key))

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
