"""What is installed, read from distributions' metadata without importing any of it."""

import re
from importlib.metadata import EntryPoint, entry_points

import attrs

LEVEL = 1
"""The level of the plugin interface that this axcore speaks: entry-point group `axcore.v1`."""

CORE = "core"
"""The name under which axcore's own records stand."""

_GROUP = re.compile(r"axcore\.v(\d+)")


@attrs.frozen(kw_only=True)
class Candidate:
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


def discover() -> tuple[Candidate, ...]:
    """Returns every plugin installed, sorted by name, importing none of them."""
    groups = entry_points()
    found = [
        _candidate(point, int(match[1]))
        for group in groups.groups
        if (match := _GROUP.fullmatch(group))
        for point in groups.select(group=group)
    ]
    return tuple(sorted(found, key=lambda one: (one.name, one.distribution, one.level)))


def _candidate(point: EntryPoint, level: int) -> Candidate:
    dist = point.dist
    return Candidate(
        name=point.name,
        level=level,
        module=point.value.partition(":")[0].strip(),
        distribution=dist.name if dist else "?",
        version=dist.version if dist else "?",
    )
