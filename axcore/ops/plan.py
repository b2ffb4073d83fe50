"""The plan: which kernels were chosen, for which calls and why, since the process began.

Ops choose while they are traced. A trainer traces its step under its policy, then prints
`kernel_plan(policy)` and keeps `to_json()` of it with the run.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import attrs

from axcore.ops.call import Call
from axcore.ops.policy import KernelPolicy, current_policy
from axcore.ops.registry import Choice, choose

_chosen: dict[tuple[KernelPolicy, Call], Choice] = {}
_lock = threading.Lock()
_made: ContextVar[list[Choice] | None] = ContextVar("axcore_choices", default=None)


@attrs.frozen
class KernelPlan:
    """Choices in the order in which they were first made."""

    choices: tuple[Choice, ...]

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
    """Return the choice for a call under the current policy, and add it to the plan.

    Raises:
        KernelError: As `choose` does.
    """
    policy = current_policy()
    choice = choose(call, policy)
    with _lock:
        _chosen.setdefault((policy, call), choice)
    made = _made.get()
    if made is not None:
        made.append(choice)
    return choice


@contextlib.contextmanager
def recording_choices() -> Iterator[list[Choice]]:
    """Give a list of the choices that are made while the context is open, in their order."""
    made: list[Choice] = []
    token = _made.set(made)
    try:
        yield made
    finally:
        _made.reset(token)


def kernel_plan(policy: KernelPolicy | None = None) -> KernelPlan:
    """Return what was chosen under a policy; under the current one if left out."""
    policy = policy or current_policy()
    with _lock:
        return KernelPlan(tuple(one for (by, _), one in _chosen.items() if by == policy))


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
