"""`Profile`: the time of a recorded step, by module and by kind of operation."""

import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import jax

from axcore.aot.hlo.program import (
    Instruction,
    ModuleNames,
    Program,
    is_backward,
    module_paths,
    parse_program,
)
from axcore.config.json_files import read_json_file
from axcore.errors import CheckpointError
from axcore.module import Module
from axcore.profiles.capture import PROFILE_NAME, PROGRAM_NAME
from axcore.whole_files import open_regular

UNKNOWN = "(not named by the program)"
_CONTROL = ("while", "conditional", "call")
"""They run others, and their own time is that of waiting for them."""

_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_PRODUCTS = ("dot", "convolution", "ragged-dot")
_MODULE_NAME = re.compile(r"^HloModule ([^,\s]+)")


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


@attrs.frozen(kw_only=True)
class Part:
    """The time of a part of a step.

    Args:
        name: A module's path, or a kind of operation.
        seconds: Of a step on one device; operations that ran at the same time count each.
        backward_seconds: The part of it that is of the backward pass.
        share: Of the time of all operations.
    """

    name: str
    seconds: float
    backward_seconds: float
    share: float


@attrs.frozen(kw_only=True)
class Profile:
    """What the time of a step goes to, averaged over recorded steps and devices.

    Args:
        folder: Where it was recorded.
        steps: The first and the last step.
        hardware: What they ran on.
        step_seconds: From the first operation of the recording to the last, by steps.
        idle_seconds: The part of it in which no operation ran.
        exposed_seconds: The part of it in which only devices talked to each other.
        modules: By module, the longest first.
        kinds: By kind of operation, the longest first.
    """

    folder: str
    steps: tuple[int, int]
    hardware: str
    step_seconds: float
    idle_seconds: float
    exposed_seconds: float
    modules: tuple[Part, ...]
    kinds: tuple[Part, ...]


def read_profile(folder: Path, model: Module) -> Profile:
    """Return what a recording says.

    Args:
        folder: One of those in `RUN/profiles`.
        model: Of the run; its paths name the modules.

    Raises:
        CheckpointError: A file is missing or damaged, or the trace contains nothing of the step.
    """
    try:
        facts = read_json_file(folder / PROFILE_NAME)
        first, last = facts["steps"]
        with (
            open_regular(folder / PROGRAM_NAME) as raw,
            gzip.open(raw, "rt", encoding="utf-8") as file,
        ):
            text = file.read()
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the recording cannot be read: {type(error).__name__}: {error}",
            where=str(folder),
            hint="the run may have ended while it was written; record it again",
        ) from error
    program, header = parse_program(text), _MODULE_NAME.match(text)
    operations = read_trace(folder, header[1] if header else "")
    named = _Named(program, ModuleNames(module_paths(model)))
    steps = last - first + 1
    clock = _Clock(operations, named, steps)
    return Profile(
        folder=str(folder),
        steps=(first, last),
        hardware=str(facts.get("hardware", "")),
        step_seconds=clock.whole,
        idle_seconds=clock.idle,
        exposed_seconds=clock.exposed,
        modules=_parts(operations, named.module, named, clock),
        kinds=_parts(operations, named.kind, named, clock),
    )


class _Named:
    """What the program says about an operation."""

    def __init__(self, program: Program, names: ModuleNames) -> None:
        self._program = program
        self._names = names
        self._found: dict[str, tuple[Instruction, Any]] = {
            one.name: (one, computation)
            for computation in program.computations.values()
            for one in computation.instructions
        }

    def _scopes(self, name: str) -> str:
        instruction, computation = self._found[name]
        return self._program.scopes_around(instruction, computation)

    def module(self, name: str) -> str:
        """Return the path of its module."""
        return self._names(self._scopes(name)) if name in self._found else UNKNOWN

    def is_backward(self, name: str) -> bool:
        """Return whether it is of the backward pass."""
        return name in self._found and is_backward(self._scopes(name))

    def is_control(self, name: str) -> bool:
        """Return whether it runs others."""
        return name in self._found and self._found[name][0].opcode in _CONTROL

    def is_collective(self, name: str) -> bool:
        """Return whether devices talk to each other in it."""
        opcode = self._found[name][0].opcode if name in self._found else name
        return opcode.startswith(_COLLECTIVES)

    def kind(self, name: str) -> str:
        """Return what kind of operation it is."""
        if name not in self._found:
            return UNKNOWN
        opcode = self._found[name][0].opcode
        if self.is_collective(name):
            return opcode.removesuffix("-start").removesuffix("-done")
        within = {opcode, *self._opcodes_within(name)}
        if within & set(_PRODUCTS):
            return "product"
        if opcode == "fusion":
            return "sum over an axis" if "reduce" in within else "element by element"
        return {"custom-call": "kernel of a library or of a plugin"}.get(opcode, opcode)

    def _opcodes_within(self, name: str) -> Iterable[str]:
        instruction = self._found[name][0]
        called = instruction.called.get("calls", "")
        if instruction.opcode != "fusion" or called not in self._program.computations:
            return ()
        return (one.opcode for one in self._program.computations[called].instructions)


class _Clock:
    """Seconds of a step, over recorded steps and devices."""

    def __init__(self, operations: list[Operation], named: _Named, steps: int) -> None:
        self._devices = {one.device for one in operations}
        self._steps = steps
        whole = idle = exposed = 0.0
        for device in self._devices:
            here = [one for one in operations if one.device == device]
            # A loop lasts as long as what runs in it and would hide that the device is idle there.
            ran = [one for one in here if not named.is_control(one.name)] or here
            span = max(one.end for one in ran) - min(one.start for one in ran)
            busy = length_of_union((one.start, one.end) for one in ran)
            alone = [one for one in ran if not named.is_collective(one.name)]
            whole, idle = whole + span, idle + span - busy
            exposed += busy - length_of_union((one.start, one.end) for one in alone)
        self.whole, self.idle, self.exposed = map(self.seconds, (whole, idle, exposed))

    def seconds(self, nanoseconds: float) -> float:
        """Return what of so many nanoseconds falls on a step and a device."""
        return nanoseconds * 1e-9 / self._steps / len(self._devices)


def _parts(
    operations: list[Operation], name_of: Any, named: _Named, clock: _Clock
) -> tuple[Part, ...]:
    names: dict[str, str] = {}
    totals: dict[str, float] = defaultdict(float)
    backward: dict[str, float] = defaultdict(float)
    for one in operations:
        if named.is_control(one.name):
            continue
        part = names.get(one.name) or names.setdefault(one.name, name_of(one.name))
        totals[part] += one.own
        backward[part] += one.own if named.is_backward(one.name) else 0.0
    whole = sum(totals.values()) or 1.0
    return tuple(
        Part(
            name=part,
            seconds=clock.seconds(time),
            backward_seconds=clock.seconds(backward[part]),
            share=time / whole,
        )
        for part, time in sorted(totals.items(), key=lambda item: -item[1])
    )


def read_trace(folder: Path, module: str) -> list[Operation]:
    """Return the operations of one program.

    Args:
        folder: Contains the trace.
        module: The program's name, as the compiler has it.

    Raises:
        CheckpointError: There is no trace, or nothing of the program is in it.
    """
    files = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    if not files:
        raise CheckpointError(
            "the folder contains no trace",
            where=str(folder),
            hint="record one: axcore train EXPERIMENT --profile 10:13",
        )
    found = [one for file in files for one in _operations(file, module)]
    if not found:
        raise CheckpointError(
            f"the trace contains no operation of the program {module!r}",
            where=str(folder),
            hint="record more steps; a trace of a run that ended at once may be empty",
        )
    return found


def _operations(file: Path, module: str) -> Iterator[Operation]:
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            yield from _with_own_time(_spans(plane.name, line, module))


def _spans(plane: str, line: Any, module: str) -> list[tuple[float, float, str, str]]:
    """Return start, end, name and device of a line's operations, the outer ones first."""
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
        # The end is negated: of two that start together the longer one, the outer, comes first.
        found.append((event.start_ns, -(event.start_ns + event.duration_ns), name, device))
    return [(start, -end, name, device) for start, end, name, device in sorted(found)]


def _with_own_time(spans: list[tuple[float, float, str, str]]) -> Iterator[Operation]:
    """Yield operations of a line, each without the time of those within it."""
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
    """Return the length of what spans cover together."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
