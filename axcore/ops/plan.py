"""The plan: which kernels were chosen, for which calls and why.

Ops choose while they are traced. A trainer records what its step chooses, prints the plan, and
keeps `to_json()` of it with the run.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

import attrs

from axcore.ops.call import Call
from axcore.ops.policy import current_policy
from axcore.ops.registry import Choice, choose

_recording: ContextVar[tuple[list[Choice], ...]] = ContextVar("axcore_choices", default=())


@attrs.frozen
class KernelPlan:
    """Choices in the order in which they were first made."""

    choices: tuple[Choice, ...]

    @classmethod
    def of(cls, choices: Iterable[Choice]) -> "KernelPlan":
        """Return the plan of choices as they were recorded, each call once."""
        return cls(tuple({one.call: one for one in choices}.values()))

    def __str__(self) -> str:
        lines = {
            f"{one.call.op}: {one.kernel.name} ({one.kernel.plugin}), {one.why}, "
            f"on {one.hardware.name}": None
            for one in self.choices
        }
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the plan as JSON, with every call and every reason."""
        return json.dumps([_as_dict(one) for one in self.choices], indent=2)


def choose_and_record(call: Call) -> Choice:
    """Return the choice for a call under the current policy, and tell those who record it.

    Raises:
        KernelError: As `choose` does.
    """
    choice = choose(call, current_policy())
    for made in _recording.get():
        made.append(choice)
    return choice


@contextlib.contextmanager
def recording_choices() -> Iterator[list[Choice]]:
    """Give a list of the choices that are made while the context is open, in their order.

    A function that is compiled already chooses nothing when it runs again.
    """
    made: list[Choice] = []
    token = _recording.set((*_recording.get(), made))
    try:
        yield made
    finally:
        _recording.reset(token)


def _as_dict(choice: Choice) -> dict[str, object]:
    return {
        "op": choice.call.op,
        "call": str(choice.call),
        "hardware": choice.hardware.name,
        "kernel": choice.kernel.name,
        "plugin": choice.kernel.plugin,
        "why": choice.why,
        "rejected": {
            one.kernel.name: one.reason for one in choice.candidates if one.reason is not None
        },
    }
