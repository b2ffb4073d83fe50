"""The plan: which kernels were chosen, for which calls and why, since the process began.

Ops choose while they are traced. A trainer traces its step under its policy, then prints
`kernel_plan(policy)` and keeps `to_json()` of it with the run.
"""

import json
import threading

import attrs

from axcore.ops.call import Call
from axcore.ops.policy import KernelPolicy, current_policy
from axcore.ops.registry import Choice, choose

_chosen: dict[tuple[KernelPolicy, Call], Choice] = {}
_lock = threading.Lock()


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
    return choice


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
