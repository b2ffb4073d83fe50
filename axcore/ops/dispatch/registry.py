"""What kernels there are for a call, each with the reason why it cannot serve, if it cannot.

Nothing here looks at devices or arrays, so every answer can be had for hardware you do not have.
"""

from collections.abc import Iterator, Sequence

import attrs

from axcore.errors import PluginError
from axcore.ops.dispatch.call import Call
from axcore.plugins import Hardware, HardwareFamily, Kernel, plugin_host


@attrs.frozen
class KernelCandidate:
    """One kernel of an op, and why it cannot serve a call; `reason` is None where it can."""

    kernel: Kernel
    reason: str | None

    @property
    def verdict(self) -> str:
        """Whether it can serve, in words."""
        if self.reason is not None:
            return f"no: {self.reason}"
        pinned_only = self.kernel.pinned_only
        return "fits" if pinned_only is None else f"fits; runs only when pinned: {pinned_only}"


def op_kernels(op: str) -> tuple[Kernel, ...]:
    """Return every installed kernel of an op: those of the highest band first, then by name."""
    records = plugin_host().records(Kernel)
    found = [one for kernel in records for one in kernel.halves if one.op == op]
    return tuple(sorted(found, key=lambda kernel: (-kernel.priority, kernel.name)))


def candidates(
    call: Call, hardware: Hardware, kernels: Sequence[Kernel]
) -> tuple[KernelCandidate, ...]:
    """Return every kernel with its reason, in the order given."""
    return tuple(
        KernelCandidate(kernel, _unsupported_reason(kernel, call, hardware)) for kernel in kernels
    )


def explain(call: Call, hardware: Hardware) -> str:
    """Return the table of an op's installed kernels for a call on some hardware."""
    return table(candidates(call, hardware, op_kernels(call.op)))


def table(candidates: Sequence[KernelCandidate], *, chosen: Kernel | None = None) -> str:
    """Return a line for every candidate: name, plugin, band and verdict; the chosen has a star."""
    names = max((len(one.kernel.name) for one in candidates), default=0)
    bands = max((len(one.kernel.band) for one in candidates), default=0)
    lines = (
        f"{'*' if one.kernel == chosen else ' '} {one.kernel.name:<{names}} "
        f"{one.kernel.band:<{bands}} ({one.kernel.plugin}) {one.verdict}"
        for one in candidates
    )
    return "\n".join(lines) or "  (no kernels)"


def meant_for(hardware: Hardware, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels that are written for the hardware.

    Those that run only when pinned are not among them. Where there are any, a portable kernel
    serves only if it is allowed.
    """
    return tuple(
        kernel for kernel in _unpinned(kernels) if not kernel.unsupported_hardware_reason(hardware)
    )


def written_for_other_chips(
    hardware: Hardware, kernels: Sequence[Kernel], families: Sequence[HardwareFamily]
) -> tuple[Kernel, ...]:
    """Return the kernels that the hardware's plugin brings, all of them for other chips."""
    if meant_for(hardware, kernels):
        return ()
    owners = {one.plugin for one in families if one.name == hardware.family} - {"core"}
    return tuple(kernel for kernel in _unpinned(kernels) if kernel.plugin in owners)


def _unpinned(kernels: Sequence[Kernel]) -> Iterator[Kernel]:
    return (one for one in kernels if not one.is_portable and one.pinned_only is None)


def _unsupported_reason(kernel: Kernel, call: Call, hardware: Hardware) -> str | None:
    reason = kernel.unsupported_hardware_reason(hardware)
    if reason is not None or kernel.unsupported_reason is None:
        return reason
    unsupported_reason = kernel.unsupported_reason.resolve()
    try:
        answer: object = unsupported_reason(call)
    except Exception as error:
        error.add_note(
            f"in `unsupported_reason` of kernel {kernel.key} of plugin {kernel.plugin!r}"
        )
        raise
    if answer is None or (isinstance(answer, str) and answer):
        return answer
    raise PluginError(
        f"`unsupported_reason` of kernel {kernel.key} returned {answer!r}; expected None or "
        "a reason",
        where=f"plugin {kernel.plugin!r}",
        hint="return None where the kernel can serve the call, else why not as a str",
    )
