"""What is installed, read from distributions' metadata without importing any of it.

Of a distribution without a plugin, no more is read than its file of entry points: with hundreds of
them, `importlib.metadata.entry_points`, which parses every one, costs several times as much.
"""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, DistributionFinder, EntryPoint, PathDistribution
from pathlib import Path
from typing import Literal

import attrs

from axcore import __version__
from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.registration import CORE, Record

LEVEL = 1
"""The level of the plugin interface that this axcore speaks: entry-point group `axcore.v1`."""

_SEPARATORS = re.compile(r"[-_.]+")
_GROUP = re.compile(r"axcore\.v(\d+)")


@attrs.frozen(kw_only=True)
class PluginCandidate:
    """An entry point that offers a plugin.

    Args:
        name: The plugin's name everywhere.
        level: Of the interface it is written for.
        module: To import.
        distribution: Which brings it.
        version: Of the distribution; "unknown" where its metadata gives none.
        problem: What is wrong with its metadata, empty where nothing is.
    """

    name: str
    level: int
    module: str
    distribution: str
    version: str
    problem: str = ""


def discover() -> tuple[PluginCandidate, ...]:
    """Return every plugin installed, sorted by name, importing none of them.

    Where two versions of a distribution are on `sys.path`, the first one counts, as for imports.
    """
    found = [candidate for dist in _with_plugins() for candidate in _candidates(dist)]
    return tuple(sorted(found, key=lambda one: (one.name, one.distribution, one.level)))


def _with_plugins() -> Iterator[Distribution]:
    """Yield the distributions whose entry points name a group of ours."""
    seen: set[str] = set()
    for entry in sys.path:
        for info in _infos(entry or "."):
            name = _distribution_name(info)
            if name in seen:
                continue
            seen.add(name)
            if _names_our_group(f"{info}/entry_points.txt"):
                yield PathDistribution(Path(info))
    for dist in _found_otherwise():
        if _is_ours(dist) and _normalised(dist.name) not in seen:
            yield dist


def _is_ours(dist: Distribution) -> bool:
    try:
        return "[axcore.v" in (dist.read_text("entry_points.txt") or "")
    except UnicodeDecodeError as error:  # named as broken where it is ours
        return b"[axcore.v" in error.object


def _infos(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # no folder, or one that cannot be read
        return []
    return [f"{folder}/{name}" for name in names if name.endswith((".dist-info", ".egg-info"))]


def _distribution_name(info: str) -> str:
    return _normalised(info.rpartition("/")[2].rpartition(".")[0].partition("-")[0])


def _normalised(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


def _names_our_group(path: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            return b"[axcore.v" in file.read()
    except OSError:  # most have no such file
        return False


def _found_otherwise() -> Iterator[Distribution]:
    """Yield what is not in a folder: in archives on `sys.path`, or by finders of others."""
    archives = [entry for entry in sys.path if os.path.isfile(entry)]
    if archives:
        yield from Distribution.discover(path=archives)
    for finder in sys.meta_path:
        find = getattr(finder, "find_distributions", None)
        if find is not None and finder is not PathFinder:
            yield from find(DistributionFinder.Context())


def _candidates(dist: Distribution) -> Iterator[PluginCandidate]:
    """Yield the plugins of a distribution, or one that says why its metadata cannot be read."""
    name, version, problem = _identity(dist)
    found: list[tuple[EntryPoint, int]] = []
    try:
        matches = [(point, _GROUP.fullmatch(point.group)) for point in dist.entry_points]
        found = [(point, int(match[1])) for point, match in matches if match]
    except ValueError as error:
        problem = problem or f"its entry_points.txt cannot be read: {error}"
    if not found:
        problem = problem or "its entry_points.txt names axcore.v1 and no plugin in that group"
        yield PluginCandidate(
            name=name, level=LEVEL, module="", distribution=name, version=version, problem=problem
        )
    for point, level in found:
        module = point.value.strip()
        yield PluginCandidate(
            name=point.name,
            level=level,
            module=module,
            distribution=name,
            version=version,
            problem=problem or _not_a_module(module),
        )


def _identity(dist: Distribution) -> tuple[str, str, str]:
    """Return the name and version of a distribution, and what is wrong with its METADATA."""
    folder = str(getattr(dist, "_path", "")).rstrip("/").rpartition("/")[2]
    name, _, version = folder.rpartition(".")[0].partition("-")
    name, version = _normalised(name) or "unknown", version or "unknown"
    try:
        metadata = dist.metadata
        if not metadata or not metadata["Name"] or not metadata["Version"]:
            return name, version, "its METADATA names no distribution and version"
        requirements = dist.requires or ()
    except (ValueError, OSError, KeyError) as error:
        return name, version, f"its METADATA cannot be read: {error}"
    return metadata["Name"], metadata["Version"], _unmet(requirements)


def _unmet(requirements: Iterable[str]) -> str:
    """Return what a distribution requires of axcore that this one does not meet, or nothing."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        if not _normalised(text).startswith("axcore"):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return f"it requires {text!r}, which is not a requirement"
        is_of_axcore = _normalised(requirement.name) == "axcore"
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        fits = requirement.specifier.contains(__version__, prereleases=True)
        if is_of_axcore and applies and not fits:
            return f"it requires {text}, and this is axcore {__version__}"
    return ""


def _not_a_module(value: str) -> str:
    if all(part.isidentifier() for part in value.split(".")):
        return ""
    return f"its entry point is {value!r}; expected a module, such as 'axl_acme.plugin'"


ALLOW = "AXCORE_PLUGINS"
BLOCK = "AXCORE_BLOCK"


@attrs.frozen(kw_only=True)
class PluginFilter:
    """Which plugins the environment lets in.

    Args:
        allow: Names that may load; None lets all.
        block: Names that may not.
    """

    allow: frozenset[str] | None = None
    block: frozenset[str] = frozenset()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "PluginFilter":
        """Read `AXCORE_PLUGINS` and `AXCORE_BLOCK`: names, with commas between them."""
        allow = _names(environment.get(ALLOW, ""))
        return cls(allow=allow or None, block=_names(environment.get(BLOCK, "")))

    def exclusion_reason(self, name: str) -> str | None:
        """Return None where the plugin may load, else which variable keeps it out."""
        if name in self.block:
            return f"{BLOCK} names it"
        if self.allow is not None and name not in self.allow:
            return f"{ALLOW} does not name it"
        return None

    def problem(self, installed: Iterable[str]) -> PluginError | None:
        """Return the error of names that are not installed, or of blocking the core, or None."""
        installed = sorted(set(installed))
        if CORE in self.block:
            return PluginError(
                f"{BLOCK} names {CORE!r}, which cannot be blocked",
                where=f"environment variable {BLOCK}",
                hint=f"remove {CORE} from {BLOCK}",
            )
        for variable, names in (
            (ALLOW, (self.allow or frozenset()) - {CORE}),
            (BLOCK, self.block),
        ):
            for name in sorted(names.difference(installed)):
                return _not_installed(variable, name, installed)
        return None


def _not_installed(variable: str, name: str, installed: list[str]) -> PluginError:

    return PluginError(
        f"{variable} names {name!r}, and no such plugin is installed; "
        f"{suggest_names(name, installed)}",
        where=f"environment variable {variable}",
        hint=f"correct {variable}, or install {name}",
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


State = Literal["found", "blocked", "incompatible", "loaded", "failed"]


@attrs.frozen(kw_only=True)
class Plugin:
    """One plugin, as far as the host has got with it.

    Args:
        candidate: Where it comes from.
        state: "found" before it is imported, then "loaded" or "failed"; "blocked" by the
            environment; "incompatible" where it is written for another level.
        reason: Why it is blocked or incompatible; empty otherwise.
        error: Why it failed, where it did.
        import_time_s: Of its module, where it was imported.
        hooks: The hooks it implements.
        records: What it brought, sorted.
    """

    candidate: PluginCandidate
    state: State = "found"
    reason: str = ""
    error: BaseException | None = attrs.field(default=None, eq=False)
    import_time_s: float | None = attrs.field(default=None, eq=False)
    hooks: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()

    @property
    def name(self) -> str:
        """The plugin's name everywhere."""
        return self.candidate.name

    @property
    def is_broken(self) -> bool:
        """Whether runs refuse to start while it is installed and not blocked."""
        return self.state in ("failed", "incompatible")

    @property
    def trouble(self) -> str:
        """One line on what is wrong, empty where nothing is."""
        if self.error is None:
            return self.reason
        if isinstance(self.error, PluginError):
            return self.error.what
        return f"{type(self.error).__name__}: {self.error}"

    def failed(self, error: BaseException) -> "Plugin":
        """Return the plugin as failed; what it brought is dropped."""
        return attrs.evolve(self, state="failed", error=error, records=())


def survey(
    candidates: Iterable[PluginCandidate], plugin_filter: PluginFilter
) -> tuple[Plugin, ...]:
    """Return one plugin per name, in order of names, none of them imported yet."""
    by_name: dict[str, list[PluginCandidate]] = defaultdict(list)
    for candidate in candidates:
        by_name[candidate.name].append(candidate)
    return tuple(_first_look(by_name[name], plugin_filter) for name in sorted(by_name))


def _first_look(offers: list[PluginCandidate], plugin_filter: PluginFilter) -> Plugin:
    fitting = [offer for offer in offers if offer.level == LEVEL]
    plugin = Plugin(candidate=(fitting or offers)[0])
    blocked = plugin_filter.exclusion_reason(plugin.name)
    if blocked:
        return attrs.evolve(plugin, state="blocked", reason=blocked)
    if not fitting:
        level = plugin.candidate.level
        reason = f"written for axcore.v{level}; this axcore speaks axcore.v{LEVEL}"
        return attrs.evolve(plugin, state="incompatible", reason=reason)
    if plugin.candidate.problem:
        return plugin.failed(_bad_metadata(plugin.candidate))
    if plugin.name == CORE:
        return plugin.failed(_reserved(plugin.candidate))
    if len(fitting) > 1:
        return plugin.failed(_offered_twice(fitting))
    return plugin


def _bad_metadata(candidate: PluginCandidate) -> PluginError:
    return PluginError(
        f"distribution {candidate.distribution} cannot be used: {candidate.problem}",
        hint=f"pip install --upgrade --force-reinstall {candidate.distribution}",
    )


def _reserved(candidate: PluginCandidate) -> PluginError:
    return PluginError(
        f"distribution {candidate.distribution} names its plugin {CORE!r}, which is axcore's own",
        hint=f"uninstall {candidate.distribution}",
    )


def _offered_twice(offers: list[PluginCandidate]) -> PluginError:
    distributions = " and ".join(f"{offer.distribution} {offer.version}" for offer in offers)
    return PluginError(
        f"two distributions bring a plugin named {offers[0].name!r}: {distributions}",
        hint="uninstall one of them",
    )
