"""Which kernel serves a call: a pin, else the first that can; never a silent fallback.

Of the kernels that can serve, and may without a pin:

1. With `kernels.choice="validated"`, those that never ran on the chip wait where one that did
   can serve.
2. The highest band goes first.
3. Within a band, `preferred_to` decides; a tie is an error that names the pins to write.
4. A portable kernel that was not validated on the chip serves only where it is allowed, if there
   are kernels for the hardware. Where there are none it serves, and the plan says so.
"""

from collections.abc import Sequence

import attrs

from axcore.errors import KernelError
from axcore.ops.dispatch.call import Call
from axcore.ops.dispatch.policy import KernelPolicy, KernelPreference
from axcore.ops.dispatch.registry import (
    KernelCandidate,
    candidates,
    meant_for,
    op_kernels,
    table,
    written_for_other_chips,
)
from axcore.plugins import Hardware, HardwareFamily, Kernel, plugin_host


@attrs.frozen
class ChosenKernel:
    """The kernel chosen for a call, why, and what else there was.

    Args:
        call: What was asked for.
        hardware: What the kernel was chosen for.
        kernel: What serves the call.
        why: Why it does, in words.
        candidates: Every kernel of the op, with the reason against it.
        otherwise: What another `kernels.choice` takes: `fastest: NAME`; None where it takes the
            same, or where the kernel is pinned.
    """

    call: Call
    hardware: Hardware
    kernel: Kernel
    why: str
    candidates: tuple[KernelCandidate, ...]
    otherwise: str | None = None

    def table(self) -> str:
        """Return a line for every candidate, with its reason."""
        return table(self.candidates, chosen=self.kernel)

    def __str__(self) -> str:
        kernel = f"{self.call.op}: {self.kernel.name} ({self.kernel.plugin}), {self.why}, "
        otherwise = f"; kernels.choice={self.otherwise}" if self.otherwise else ""
        return f"{kernel}on {self.hardware.name}{otherwise}"


def choose(
    call: Call,
    policy: KernelPolicy,
    *,
    partner: str | None = None,
    kernels: Sequence[Kernel] | None = None,
    families: Sequence[HardwareFamily] | None = None,
) -> ChosenKernel:
    """Return the kernel that serves a call under a policy.

    Args:
        call: What is asked for.
        policy: Hardware, pins, what is allowed, and which kernel serves where several can.
        partner: For a backward call: the name of the forward kernel. The kernel of that name serves
            if it can and none is pinned.
        kernels: The op's kernels; those installed if left out.
        families: The hardware families known; those installed if left out.

    Raises:
        KernelError: A pin cannot be followed, two kernels tie, or nothing may serve the call.
    """
    kernels = op_kernels(call.op) if kernels is None else kernels
    families = plugin_host().records(HardwareFamily) if families is None else families
    hardware = policy.hardware
    found = candidates(call, hardware, kernels)
    if call.op in policy.pins:
        return ChosenKernel(
            call, hardware, _pinned(policy.pins[call.op], call, found), "pinned", found
        )
    for one in found:
        if one.kernel.name == partner and one.reason is None:
            return ChosenKernel(call, hardware, one.kernel, "as the forward kernel", found)
    first = first_of(found, hardware, policy.kernel_choice)
    if not first:
        raise KernelError(
            f"no kernel can serve {call} on {hardware.name}.\n{table(found)}",
            hint=_pins_of(call, [one.kernel for one in found if one.reason is None]),
        )
    if len(first) > 1:
        raise _tie(first, call, hardware)
    _refuse_silent_fallback(first[0], call, policy, found)
    why = _why(first[0], found, policy, families)
    return ChosenKernel(call, hardware, first[0], why, found, _otherwise(first, found, policy))


def first_of(
    found: Sequence[KernelCandidate], hardware: Hardware, kernel_choice: KernelPreference
) -> tuple[Kernel, ...]:
    """Return the kernel that goes before all others: several where they tie, none where none fits.

    >>> first_of((), Hardware.parse("cpu-1"), "fastest")
    ()
    """
    fitting = _fitting(found)
    if kernel_choice == "validated":
        fitting = [one for one in fitting if one.is_validated_on(hardware)] or fitting
    band = [one for one in fitting if one.priority == max(other.priority for other in fitting)]
    behind = {name for one in band for name in one.preferred_to}
    return tuple(one for one in band if one.name not in behind) or tuple(band)


def _fitting(found: Sequence[KernelCandidate]) -> list[Kernel]:
    return [one.kernel for one in found if one.reason is None and one.kernel.pinned_only is None]


def _why(
    kernel: Kernel,
    found: Sequence[KernelCandidate],
    policy: KernelPolicy,
    families: Sequence[HardwareFamily],
) -> str:
    chip, is_validated = policy.hardware.chip, kernel.is_validated_on(policy.hardware)
    elsewhere = written_for_other_chips(policy.hardware, [one.kernel for one in found], families)
    if kernel.is_portable and elsewhere:
        names = " and ".join(one.name for one in elsewhere)
        are = "are" if len(elsewhere) > 1 else "is"
        return f"not tuned for {chip}: {names} {are} for other chips"
    if len(_fitting(found)) == 1:
        why = "the only one that fits"
    else:
        why = "the first that fits" if not is_validated else f"validated on {chip}"
    return why if is_validated or kernel.is_portable else f"{why}, never run on {chip}"


def _otherwise(
    first: Sequence[Kernel], found: Sequence[KernelCandidate], policy: KernelPolicy
) -> str | None:
    """Return what the other `kernels.choice` takes, where that is something else."""
    other: KernelPreference = "fastest" if policy.kernel_choice == "validated" else "validated"
    others = first_of(found, policy.hardware, other)
    if tuple(others) == tuple(first):
        return None
    return f"{other}: {' or '.join(one.name for one in others)}"


def _pinned(name: str, call: Call, found: Sequence[KernelCandidate]) -> Kernel:
    for one in found:
        if one.kernel.name == name:
            if one.reason is None:
                return one.kernel
            raise KernelError(
                f"{call.op} is pinned to {name}, which cannot serve {call}: {one.reason}.",
                hint=f"remove the pin, or pin one that fits:\n{table(found)}",
            )
    from axcore.config.suggest import suggest_names

    known = [one.kernel.name for one in found]
    raise KernelError(
        f"{call.op} is pinned to {name!r}, which is no kernel of it; {suggest_names(name, known)}",
        hint=_pins_of(call, [one.kernel for one in found if one.reason is None]),
    )


def _tie(first: Sequence[Kernel], call: Call, hardware: Hardware) -> KernelError:
    names = [f"{kernel.name} (plugin {kernel.plugin})" for kernel in first]
    return KernelError(
        f"{call.op}: {' and '.join(names)} are both of the band {first[0].band!r} and fit {call} "
        f"on {hardware.name}.",
        hint=_pins_of(call, first),
    )


def _pins_of(call: Call, kernels: Sequence[Kernel]) -> str | None:
    """Return how a script, and a trainer's user, pins one of the kernels; None without any."""
    pins = " or ".join(f'pins={{"{call.op}": "{kernel.name}"}}' for kernel in kernels)
    texts = " or ".join(f'--set "kernels.pins={ {call.op: kernel.name} }"' for kernel in kernels)
    return f"pin one: {pins}; of a trainer: {texts}" if pins else None


def _refuse_silent_fallback(
    first: Kernel,
    call: Call,
    policy: KernelPolicy,
    found: Sequence[KernelCandidate],
) -> None:
    """Refuse a portable kernel where there are kernels for this hardware and none fits."""
    hardware = policy.hardware
    if not first.is_portable or first.is_validated_on(hardware) or first.name in policy.allow:
        return
    if meant_for(hardware, [one.kernel for one in found]):
        raise KernelError(
            f"{call.op}: none of the kernels installed for {hardware.name} can serve "
            f"{call}, and {first.name} is not allowed to replace it.\n{table(found)}",
            hint=f'change the call, or allow the slower kernel: allow=("{first.name}",); of a '
            f'trainer: --set "kernels.allow={(first.name,)}"',
        )
