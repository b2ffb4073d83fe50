"""What is installed, read from distributions' metadata without importing any of it.

Of a distribution without a plugin, no more is read than its file of entry points: with hundreds of
them, `importlib.metadata.entry_points`, which parses every one, costs several times as much.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, DistributionFinder, EntryPoint, PathDistribution
from pathlib import Path

import attrs

from axcore import __version__

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
