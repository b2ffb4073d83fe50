"""`Verdict`: when each kernel of an op serves a call on some hardware."""

from typing import Any, get_args

import attrs

from axcore.ops.dispatch import (
    Call,
    KernelCandidate,
    KernelPreference,
    candidates,
    first_of,
    meant_for,
    op_kernels,
)
from axcore.plugins import Hardware, Kernel

CHOICES: tuple[KernelPreference, ...] = get_args(KernelPreference)


_SERVES: dict[tuple[str, ...], str] = {
    CHOICES: "yes",
    CHOICES[:1]: "by default",
    CHOICES[1:]: "with kernels.choice=fastest",
}


@attrs.frozen(kw_only=True)
class Verdict:
    """When a kernel serves a call on some hardware.

    Args:
        kernel: The kernel.
        is_validated: Whether it has run on the chip and was timed there.
        unsupported_reason: Why it is not for the hardware; None where it is.
        refusal: Why it does not take the call; None where it does, or where there is no call.
        serves_with: The values of `kernels.choice` with which it serves unasked.
        needs_leave: Whether it must be allowed, since there are kernels for the hardware.
    """

    kernel: Kernel
    is_validated: bool
    unsupported_reason: str | None
    refusal: str | None
    serves_with: tuple[str, ...]
    needs_leave: bool

    @property
    def serves(self) -> str:
        """When it serves, in words."""
        if self.unsupported_reason is not None:
            return f"no: {self.unsupported_reason}"
        if self.refusal is not None:
            return f"not this call: {self.refusal}"
        if self.kernel.pinned_only is not None:
            return f"when pinned: {self.kernel.pinned_only}"
        if self.needs_leave:
            return "when allowed"
        return _SERVES.get(self.serves_with, "when pinned")

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        kernel = self.kernel
        return {
            "op": kernel.op,
            "name": kernel.name,
            "band": kernel.band,
            "plugin": kernel.plugin,
            "is_validated": self.is_validated,
            "unsupported_reason": self.unsupported_reason,
            "refusal": self.refusal,
            "serves_with": self.serves_with,
            "serves": self.serves,
        }


def verdicts(op: str, call: Call | None, hardware: Hardware) -> list[Verdict]:
    """Return the verdicts on an op's installed kernels; without a call, on the hardware alone.

    What serves by default comes first, then what serves otherwise, then the rest.
    """
    kernels = op_kernels(op)
    reasons = [kernel.unsupported_hardware_reason(hardware) for kernel in kernels]
    if call is None:
        found = tuple(map(KernelCandidate, kernels, reasons))
    else:
        found = candidates(call, hardware, kernels)
    firsts = {choice: first_of(found, hardware, choice) for choice in CHOICES}
    are_behind = bool(meant_for(hardware, kernels))
    verdicts = []
    for one, reason in zip(found, reasons, strict=True):
        kernel, is_validated = one.kernel, one.kernel.is_validated_on(hardware)
        needs_leave = are_behind and kernel.is_portable and not is_validated
        serves_with = tuple(name for name in CHOICES if kernel in firsts[name] and not needs_leave)
        verdicts.append(
            Verdict(
                kernel=kernel,
                is_validated=is_validated,
                unsupported_reason=reason,
                refusal=one.reason if reason is None else None,
                serves_with=serves_with,
                needs_leave=needs_leave,
            )
        )
    return sorted(verdicts, key=lambda one: [name not in one.serves_with for name in CHOICES])
