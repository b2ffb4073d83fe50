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

from axcore.ops.dispatch.block_sizes import BlockSizeEntry, BlockSizes, BlockSizeTable, sizes_of
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.choice import ChosenKernel, choose
from axcore.ops.dispatch.policy import current_policy
from axcore.plugins import Kernel
from axcore.registration.returns import CORE


@attrs.frozen
class KernelPlan:
    """Choices, and the block sizes that kernels took, in the order in which they were made."""

    choices: tuple[ChosenKernel, ...]
    block_sizes: tuple[BlockSizeEntry[Any], ...] = ()

    @classmethod
    def of(
        cls, choices: Iterable[ChosenKernel], block_sizes: Iterable[BlockSizeEntry[Any]] = ()
    ) -> "KernelPlan":
        """Return the plan of what was recorded, each call and each entry once."""
        return cls(
            tuple({one.call: one for one in choices}.values()), tuple(dict.fromkeys(block_sizes))
        )

    def never_run(self) -> tuple[Kernel, ...]:
        """Return the kernels that never ran on the chip, but for the core's portable ones."""
        return tuple(
            dict.fromkeys(
                one.kernel
                for one in self.choices
                if not one.kernel.is_validated_on(one.hardware)
                and not (one.kernel.is_portable and one.kernel.plugin == CORE)
            )
        )

    def __str__(self) -> str:
        lines = dict.fromkeys(str(one) for one in self.choices)
        return "\n".join([*lines, *(f"block sizes of {entry}" for entry in self.block_sizes)])

    def to_json(self) -> str:
        """Return the plan as JSON, with every call and every reason, and all block sizes."""
        return json.dumps([_as_dict(one, self.block_sizes) for one in self.choices], indent=2)


@attrs.frozen
class PlanRecording:
    """What was recorded so far."""

    choices: list[ChosenKernel] = attrs.field(factory=list)
    block_sizes: list[BlockSizeEntry[Any]] = attrs.field(factory=list)

    def plan(self) -> KernelPlan:
        """Return it as a plan."""
        return KernelPlan.of(self.choices, self.block_sizes)


_recording: ContextVar[tuple[PlanRecording, ...]] = ContextVar("axcore_plan", default=())


def choose_and_record(call: Call, *, partner: str | None = None) -> ChosenKernel:
    """Return the choice for a call under the current policy, and report it to recordings.

    Raises:
        KernelError: As `choose` does.
    """
    choice = choose(call, current_policy(), partner=partner)
    for recording in _recording.get():
        recording.choices.append(choice)
    return choice


def choose_block_sizes(table: BlockSizeTable[BlockSizes], call: Call) -> BlockSizes:
    """Return a kernel's block sizes for a call under the current policy, and report them.

    Raises:
        KernelError: As `BlockSizeTable.entry` does.
    """
    entry = table.entry(call, current_policy().hardware)
    for recording in _recording.get():
        recording.block_sizes.append(entry)
    return entry.block_sizes


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
def recording_choices() -> Iterator[list[ChosenKernel]]:
    """Give a list of the choices that are made while the context is open, in their order."""
    with recording_plan() as recording:
        yield recording.choices


def _as_dict(choice: ChosenKernel, block_sizes: Iterable[BlockSizeEntry[Any]]) -> dict[str, object]:
    return {
        "op": choice.call.op,
        "call": str(choice.call),
        "hardware": choice.hardware.name,
        "kernel": choice.kernel.name,
        "plugin": choice.kernel.plugin,
        "why": choice.why,
        "otherwise": choice.otherwise,
        "block_sizes": [
            {"sizes": sizes_of(entry.block_sizes), "source": entry.source}
            for entry in block_sizes
            if entry.kernel == choice.kernel.key
        ],
        "rejected": {
            one.kernel.name: one.reason for one in choice.candidates if one.reason is not None
        },
    }
