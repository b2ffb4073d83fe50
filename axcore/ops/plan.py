"""The plan: which kernels were chosen, for which calls and why.

Ops choose while they are traced. A trainer records what its step chooses, prints the plan, and
keeps `to_json()` of it with the run.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import attrs

from axcore.ops.call import Call
from axcore.ops.policy import current_policy
from axcore.ops.registry import Choice, choose
from axcore.ops.tiles import TileEntry, Tiles, TileTable, sizes_of


@attrs.frozen
class KernelPlan:
    """Choices, and the block sizes that kernels took, in the order in which they were made."""

    choices: tuple[Choice, ...]
    tiles: tuple[TileEntry[Any], ...] = ()

    @classmethod
    def of(cls, choices: Iterable[Choice], tiles: Iterable[TileEntry[Any]] = ()) -> "KernelPlan":
        """Return the plan of what was recorded, each call and each entry once."""
        return cls(tuple({one.call: one for one in choices}.values()), tuple(dict.fromkeys(tiles)))

    def __str__(self) -> str:
        lines = {
            f"{one.call.op}: {one.kernel.name} ({one.kernel.plugin}), {one.why}, "
            f"on {one.hardware.name}": None
            for one in self.choices
        }
        return "\n".join([*lines, *(f"block sizes of {entry}" for entry in self.tiles)])

    def to_json(self) -> str:
        """Return the plan as JSON, with every call and every reason, and all block sizes."""
        return json.dumps([_as_dict(one, self.tiles) for one in self.choices], indent=2)


@attrs.frozen
class PlanRecording:
    """What was recorded so far."""

    choices: list[Choice] = attrs.field(factory=list)
    tiles: list[TileEntry[Any]] = attrs.field(factory=list)

    def plan(self) -> KernelPlan:
        """Return it as a plan."""
        return KernelPlan.of(self.choices, self.tiles)


_recording: ContextVar[tuple[PlanRecording, ...]] = ContextVar("axcore_plan", default=())


def choose_and_record(call: Call) -> Choice:
    """Return the choice for a call under the current policy, and tell those who record it.

    Raises:
        KernelError: As `choose` does.
    """
    choice = choose(call, current_policy())
    for recording in _recording.get():
        recording.choices.append(choice)
    return choice


def choose_tiles(table: TileTable[Tiles], call: Call) -> Tiles:
    """Return a kernel's block sizes for a call under the current policy, and tell those who record.

    Raises:
        KernelError: As `TileTable.entry` does.
    """
    entry = table.entry(call, current_policy().hardware)
    for recording in _recording.get():
        recording.tiles.append(entry)
    return entry.tiles


@contextlib.contextmanager
def recording_plan() -> Iterator[PlanRecording]:
    """Record the choices that are made, and the block sizes taken, while the context is open.

    A function that is compiled already chooses nothing when it runs again.
    """
    recording = PlanRecording()
    token = _recording.set((*_recording.get(), recording))
    try:
        yield recording
    finally:
        _recording.reset(token)


@contextlib.contextmanager
def recording_choices() -> Iterator[list[Choice]]:
    """Give a list of the choices that are made while the context is open, in their order."""
    with recording_plan() as recording:
        yield recording.choices


def _as_dict(choice: Choice, tiles: Iterable[TileEntry[Any]]) -> dict[str, object]:
    return {
        "op": choice.call.op,
        "call": str(choice.call),
        "hardware": choice.hardware.name,
        "kernel": choice.kernel.name,
        "plugin": choice.kernel.plugin,
        "why": choice.why,
        "tiles": [
            {"sizes": sizes_of(entry.tiles), "source": entry.source}
            for entry in tiles
            if entry.kernel == choice.kernel.key
        ],
        "rejected": {
            one.kernel.name: one.reason for one in choice.candidates if one.reason is not None
        },
    }
