"""Operations in a trace: what ran when, on which device."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import jax

from axcore.errors import CheckpointError

_OPERATIONS = "XLA Ops"
"""The line of a device's plane that has nothing but operations, named by their events alone."""


@attrs.frozen
class Operation:
    """One run of an instruction.

    Args:
        name: Of the instruction.
        device: Which ran it.
        start: Nanoseconds since the trace began.
        end: Likewise.
        own: Nanoseconds of it in which no instruction ran that it called.
    """

    name: str
    device: str
    start: float
    end: float
    own: float


def read_trace(folder: Path, module: str) -> list[Operation]:
    """Returns the operations of one program.

    Args:
        folder: Holds the trace.
        module: The program's name, as the compiler has it.

    Raises:
        CheckpointError: There is no trace, or nothing of the program is in it.
    """
    files = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    if not files:
        raise CheckpointError(
            "the folder holds no trace",
            where=str(folder),
            hint="record one: axcore train EXPERIMENT --profile 10:13",
        )
    found = [one for file in files for one in _operations(file, module)]
    if not found:
        raise CheckpointError(
            f"the trace holds no operation of the program {module!r}",
            where=str(folder),
            hint="record more steps; a trace of a run that ended at once may be empty",
        )
    return found


def _operations(file: Path, module: str) -> Iterator[Operation]:
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            yield from _with_own_time(_spans(plane.name, line, module))


def _spans(plane: str, line: Any, module: str) -> list[tuple[float, float, str, str]]:
    """Returns start, end, name and device of a line's operations, the outer ones first."""
    found = []
    has_operations_only = plane.startswith("/device:") and line.name == _OPERATIONS
    for event in line.events:
        if has_operations_only:
            name, device = event.name.lstrip("%").partition(" ")[0], plane
        else:
            stats = dict(event.stats)
            if "hlo_op" not in stats or stats.get("hlo_module") != module:
                continue
            name = str(stats["hlo_op"])
            device = plane if plane.startswith("/device:") else str(stats.get("device_ordinal", 0))
        found.append((event.start_ns, -(event.start_ns + event.duration_ns), name, device))
    return [(start, -end, name, device) for start, end, name, device in sorted(found)]


def _with_own_time(spans: list[tuple[float, float, str, str]]) -> Iterator[Operation]:
    """Yields operations of a line, each without the time of those within it."""
    open_ones: list[list[Any]] = []  # start, end, name, device, time of those within
    for start, end, name, device in spans:
        yield from _closed(open_ones, until=start)
        if open_ones:
            open_ones[-1][4] += end - start
        open_ones.append([start, end, name, device, 0.0])
    yield from _closed(open_ones, until=float("inf"))


def _closed(open_ones: list[list[Any]], *, until: float) -> Iterator[Operation]:
    while open_ones and open_ones[-1][1] <= until:
        start, end, name, device, within = open_ones.pop()
        yield Operation(name, device, start, end, max(0.0, end - start - within))


def length_of_union(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the length of what spans cover together."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
