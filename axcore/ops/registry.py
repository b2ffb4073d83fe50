"""Which kernel serves a call: pins, then predicates, then priority; never a silent fallback.

Every kernel of the op is a candidate, with the reason why it cannot serve if it cannot, so that a
choice explains itself. Nothing here looks at devices or arrays.
"""

from collections.abc import Sequence

import attrs

from axcore.errors import KernelError, PluginError
from axcore.ops.call import Call
from axcore.ops.policy import KernelPolicy
from axcore.plugins import Hardware, HardwareFamily, Kernel, plugin_host

PORTABLE = 50
"""Kernels below this priority run only when pinned: references, and parts kept for comparison."""

HARDWARE = 200
"""Kernels from this priority on are written for some hardware."""

CORE = "core"


@attrs.frozen
class Candidate:
    """One kernel of an op, and why it cannot serve a call; `reason` is None where it can."""

    kernel: Kernel
    reason: str | None


@attrs.frozen
class Choice:
    """The kernel chosen for a call, why, and what else there was."""

    call: Call
    hardware: Hardware
    kernel: Kernel
    why: str
    candidates: tuple[Candidate, ...]

    def table(self) -> str:
        """Return a line for every candidate, best first, with its reason."""
        return table(self.candidates, chosen=self.kernel)


def op_kernels(op: str) -> tuple[Kernel, ...]:
    """Return every installed kernel of an op, highest priority first."""
    found = [kernel for kernel in plugin_host().records(Kernel) if kernel.op == op]
    return tuple(sorted(found, key=lambda kernel: (-kernel.priority, kernel.name)))


def candidates(call: Call, hardware: Hardware, kernels: Sequence[Kernel]) -> tuple[Candidate, ...]:
    """Return every kernel with its reason, in the order given."""
    return tuple(Candidate(kernel, _why_not(kernel, call, hardware)) for kernel in kernels)


def explain(call: Call, hardware: Hardware) -> str:
    """Return the table of an op's installed kernels for a call on some hardware."""
    return table(candidates(call, hardware, op_kernels(call.op)))


def choose(
    call: Call,
    policy: KernelPolicy,
    *,
    kernels: Sequence[Kernel] | None = None,
    families: Sequence[HardwareFamily] | None = None,
) -> Choice:
    """Return the kernel that serves a call under a policy.

    Args:
        call: What is asked for.
        policy: Hardware, pins and what is allowed.
        kernels: The op's kernels, highest priority first; those installed if left out.
        families: The hardware families known; those installed if left out.

    Raises:
        KernelError: A pin cannot be followed, two kernels tie, or nothing may serve the call.
    """
    kernels = op_kernels(call.op) if kernels is None else kernels
    families = plugin_host().records(HardwareFamily) if families is None else families
    found = candidates(call, policy.hardware, kernels)
    if call.op in policy.pins:
        kernel = _pinned(policy.pins[call.op], call, found)
        return Choice(call, policy.hardware, kernel, "pinned", found)
    fitting = [one.kernel for one in found if one.reason is None and _is_automatic(one.kernel)]
    if not fitting:
        raise KernelError(
            f"no kernel can serve {call} on {policy.hardware.name}.\n{table(found)}",
            mend=_pins_of(call, [one.kernel for one in found if one.reason is None]),
        )
    best = [one for one in fitting if one.priority == max(k.priority for k in fitting)]
    if len(best) > 1:
        raise _tie(best, call, policy.hardware)
    _refuse_silent_fallback(best[0], call, policy, found, families)
    why = "the only one that fits" if len(fitting) == 1 else "the highest priority that fits"
    return Choice(call, policy.hardware, best[0], why, found)


def meant_for(
    hardware: Hardware,
    kernels: Sequence[Kernel],
    *,
    families: Sequence[HardwareFamily] | None = None,
) -> tuple[Kernel, ...]:
    """Return the kernels that are written for the hardware, or come with the plugin for it.

    Where there are any, a portable kernel serves only if it is allowed.
    """
    families = plugin_host().records(HardwareFamily) if families is None else families
    owners = {one.plugin for one in families if one.name == hardware.family} - {CORE}
    return tuple(
        kernel
        for kernel in kernels
        if kernel.priority >= HARDWARE
        and (kernel.plugin in owners or kernel.why_not_on(hardware) is None)
    )


def table(candidates: Sequence[Candidate], *, chosen: Kernel | None = None) -> str:
    """Return a line for every candidate: priority, name, plugin and verdict."""
    width = max((len(one.kernel.name) for one in candidates), default=0)
    lines = []
    for one in candidates:
        kernel = one.kernel
        verdict = f"no: {one.reason}" if one.reason is not None else "fits"
        if one.reason is None and not _is_automatic(kernel):
            verdict = "fits; runs only when pinned"
        mark = "*" if kernel == chosen else " "
        plugin = f"({kernel.plugin})"
        lines.append(f"{mark} {kernel.priority:>3} {kernel.name:<{width}} {plugin} {verdict}")
    return "\n".join(lines) or "  (no kernels)"


def _is_automatic(kernel: Kernel) -> bool:
    return kernel.priority >= PORTABLE


def _why_not(kernel: Kernel, call: Call, hardware: Hardware) -> str | None:
    reason = kernel.why_not_on(hardware)
    if reason is not None or kernel.accepts is None:
        return reason
    accepts = kernel.accepts.resolve()
    try:
        answer: object = accepts(call)
    except Exception as error:
        error.add_note(f"in `accepts` of kernel {kernel.key} of plugin {kernel.plugin!r}")
        raise
    if answer is None or (isinstance(answer, str) and answer):
        return answer
    raise PluginError(
        f"`accepts` of kernel {kernel.key} returned {answer!r}; expected None or a reason",
        where=f"plugin {kernel.plugin!r}",
        mend="return None where the kernel can serve the call, else why not as a str",
    )


def _pinned(name: str, call: Call, found: Sequence[Candidate]) -> Kernel:
    for one in found:
        if one.kernel.name == name:
            if one.reason is None:
                return one.kernel
            raise KernelError(
                f"{call.op} is pinned to {name}, which cannot serve {call}: {one.reason}.",
                mend=f"remove the pin, or pin one that fits:\n{table(found)}",
            )
    from axcore.config.suggest import name_the_known

    known = [one.kernel.name for one in found]
    raise KernelError(
        f"{call.op} is pinned to {name!r}, which is no kernel of it; {name_the_known(name, known)}",
        mend=_pins_of(call, [one.kernel for one in found if one.reason is None]),
    )


def _tie(best: Sequence[Kernel], call: Call, hardware: Hardware) -> KernelError:
    names = [f"{kernel.name} (plugin {kernel.plugin})" for kernel in best]
    return KernelError(
        f"{call.op}: {' and '.join(names)} both have priority {best[0].priority} and fit {call} "
        f"on {hardware.name}.",
        mend=_pins_of(call, best),
    )


def _pins_of(call: Call, kernels: Sequence[Kernel]) -> str | None:
    """Return how a script, and a trainer's user, pins one of the kernels; None without any."""
    pins = " or ".join(f'pins={{"{call.op}": "{kernel.name}"}}' for kernel in kernels)
    texts = " or ".join(f'--set "kernels={ {call.op: kernel.name} }"' for kernel in kernels)
    return f"pin one: {pins}; of a trainer: {texts}" if pins else None


def _refuse_silent_fallback(
    best: Kernel,
    call: Call,
    policy: KernelPolicy,
    found: Sequence[Candidate],
    families: Sequence[HardwareFamily],
) -> None:
    """Refuse a portable kernel where plugins brought kernels for this hardware and none fits."""
    if best.priority >= HARDWARE or best.name in policy.allow:
        return
    if meant_for(policy.hardware, [one.kernel for one in found], families=families):
        raise KernelError(
            f"{call.op}: none of the kernels installed for {policy.hardware.name} can serve "
            f"{call}, and {best.name} is not allowed to stand in.\n{table(found)}",
            mend=f'change the call, or allow the slower kernel: allow=("{best.name}",); of a '
            f'trainer: --set "allow_kernels={(best.name,)}"',
        )
