"""What is installed, read from distributions' metadata without importing any of it.

Of a distribution without a plugin, no more is read than its file of entry points: with hundreds of
them, `importlib.metadata.entry_points`, which parses every one, costs several times as much.
"""

import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, DistributionFinder, EntryPoint, PathDistribution
from pathlib import Path

import attrs

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
        version: Of the distribution.
    """

    name: str
    level: int
    module: str
    distribution: str
    version: str


def discover() -> tuple[PluginCandidate, ...]:
    """Returns every plugin installed, sorted by name, importing none of them.

    Where two versions of a distribution are on `sys.path`, the first one counts, as for imports.
    """
    found = [
        _candidate(point, dist, int(match[1]))
        for dist in _with_plugins()
        for point in dist.entry_points
        if (match := _GROUP.fullmatch(point.group))
    ]
    return tuple(sorted(found, key=lambda one: (one.name, one.distribution, one.level)))


def _with_plugins() -> Iterator[Distribution]:
    """Yields the distributions whose entry points name a group of ours."""
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
        is_ours = "[axcore.v" in (dist.read_text("entry_points.txt") or "")
        if is_ours and _normalised(dist.name) not in seen:
            yield dist


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
    """Yields what is not in a folder: in archives on `sys.path`, or by finders of others."""
    archives = [entry for entry in sys.path if os.path.isfile(entry)]
    if archives:
        yield from Distribution.discover(path=archives)
    for finder in sys.meta_path:
        find = getattr(finder, "find_distributions", None)
        if find is not None and finder is not PathFinder:
            yield from find(DistributionFinder.Context())


def _candidate(point: EntryPoint, dist: Distribution, level: int) -> PluginCandidate:
    return PluginCandidate(
        name=point.name,
        level=level,
        module=point.value.partition(":")[0].strip(),
        distribution=dist.name,
        version=dist.version,
    )
