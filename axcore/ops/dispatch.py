"""Which kernel serves a call: a pin, else the first that can; never a silent fallback.

A `Call` is what an op is asked for, without the arrays; kernels say whether they accept it. A
`KernelPolicy` has what else decides: the hardware, pins, what is allowed. Nothing here looks at
devices or arrays, so every answer can be had for hardware you do not have.

Of the kernels that can serve, and may without a pin:

1. With `kernels.choice="validated"`, those that never ran on the chip wait where one that did
   can serve.
2. The highest band goes first.
3. Within a band, `preferred_to` decides; a tie is an error that names the pins to write.
4. A portable kernel that was not validated on the chip serves only where it is allowed, if there
   are kernels for the hardware. Where there are none it serves, and the plan says so.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar, cast

import attrs
from immutabledict import immutabledict
from jax import Array

from axcore._jax_compat import user_context
from axcore.config import suggest_names
from axcore.errors import KernelError, PluginError
from axcore.plugins import Hardware, HardwareFamily, Kernel, plugin_host

Feature = bool | int | float | str | None

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Call:
    """An abstract call: hashable, so choices can be kept by it and made anywhere.

    Args:
        op: The op's name.
        shapes: Shape by array name; arrays that the call lacks are not in it.
        dtypes: Dtype name by array name.
        features: The op's static choices by name.
        absent: Arrays that the op knows and the call lacks; None where nobody said.
    """

    op: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    features: tuple[tuple[str, Feature], ...] = ()
    absent: tuple[str, ...] | None = attrs.field(default=None, eq=False)

    @classmethod
    def of(
        cls, op: str, arrays: Mapping[str, Array | None], features: Mapping[str, Feature]
    ) -> "Call":
        """Return the abstract call of arrays (None where not given) and static choices."""
        given = {name: array for name, array in arrays.items() if array is not None}
        return cls(
            op=op,
            shapes=tuple((name, tuple(array.shape)) for name, array in given.items()),
            dtypes=tuple((name, array.dtype.name) for name, array in given.items()),
            features=tuple(features.items()),
            absent=tuple(name for name, array in arrays.items() if array is None),
        )

    def has(self, array: str) -> bool:
        """Return whether the call has that array.

        Raises:
            KernelError: The op knows no array of that name; a kernel that asks for it would
                ignore what it means.
        """
        given = dict(self.shapes)
        if array in given or self.absent is None or array in self.absent:
            return array in given
        raise self._unknown("array", array, (*given, *self.absent))

    def shape(self, array: str) -> tuple[int, ...]:
        """Return the shape of an array that the call has."""
        return self._of("array", array, dict(self.shapes))

    def dtype(self, array: str) -> str:
        """Return the dtype name of an array that the call has."""
        return self._of("array", array, dict(self.dtypes))

    def feature(self, name: str) -> Feature:
        """Return one of the op's static choices."""
        return self._of("feature", name, dict(self.features))

    def _of(self, what: str, name: str, known: Mapping[str, T]) -> T:
        if name in known:
            return known[name]
        raise self._unknown(what, name, known)

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> KernelError:
        return KernelError(f"{self} has no {what} {name!r}; {suggest_names(name, known)}")

    def __str__(self) -> str:
        dtypes = dict(self.dtypes)
        arrays = [
            f"{name} {dtypes[name]}[{','.join(map(str, shape))}]" for name, shape in self.shapes
        ]
        features = [
            f"{name}={value}"
            for name, value in self.features
            if value is not None and value is not False
        ]
        return f"{self.op}({', '.join(arrays + features)})"


KernelPreference = Literal["validated", "fastest"]
"""Which kernel serves where several can: one that has run on the chip and was timed there, if there
is any; or the first by bands and `preferred_to` alone, whether it ever ran or not.
"""


def _frozen(pins: Mapping[str, str]) -> Mapping[str, str]:
    return immutabledict(pins)


@attrs.frozen(kw_only=True)
class KernelPolicy:
    """Which hardware kernels are chosen for, and what the user asked for.

    Args:
        hardware: What the program is for, whatever this process runs on.
        pins: Kernel name by op name: that kernel or an error.
        allow: Names of portable kernels that may serve where the hardware's plugin has kernels for
            the op and none of them can.
        kernel_choice: Which kernel serves where several can.
    """

    hardware: Hardware
    pins: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    allow: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    kernel_choice: KernelPreference = "validated"

    @classmethod
    def of(cls, cfg: Any, hardware: Hardware) -> "KernelPolicy":
        """Return what a trainer's config says about kernels, for some hardware."""
        return cls(
            hardware=hardware,
            pins=cfg.kernels.pins,
            allow=cfg.kernels.allow,
            kernel_choice=cfg.kernels.choice,
        )


# A user context, on which jit caches: by a context variable a step traced under one policy would
# run, unseen, under another.
_policy = user_context(None)


def use_policy(policy: KernelPolicy) -> AbstractContextManager[None]:
    """Return a context in which ops choose their kernels by `policy`."""
    return cast(AbstractContextManager[None], _policy(policy))


def current_policy() -> KernelPolicy:
    """Return the policy in force; outside of any, that of the detected hardware without pins."""
    return cast(KernelPolicy | None, _policy.value) or _default_policy()


@functools.cache
def _default_policy() -> KernelPolicy:
    return KernelPolicy(hardware=Hardware.detect())


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
    found: list[Kernel] = []
    for kernel in plugin_host().records(Kernel):
        if kernel.op == op:
            found.append(kernel)
        elif kernel.backward is not None and op == f"{kernel.op}_backward":
            found.append(kernel.halves[1])
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
    # True or '' would otherwise read as a reason, or as none: an author's slip that chooses the
    # wrong kernel.
    if answer is None or (isinstance(answer, str) and answer):
        return answer
    raise PluginError(
        f"`unsupported_reason` of kernel {kernel.key} returned {answer!r}; expected None or "
        "a reason",
        where=f"plugin {kernel.plugin!r}",
        hint="return None where the kernel can serve the call, else why not as a str",
    )


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
        # Before the order decides: halves that one author wrote were tried together.
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
        # `or fitting`: a kernel of the plugin that never ran there still goes before a refusal.
        fitting = [one for one in fitting if one.is_validated_on(hardware)] or fitting
    band = [one for one in fitting if one.priority == max(other.priority for other in fitting)]
    behind = {name for one in band for name in one.preferred_to}
    # Where all are behind one another, it is a tie, which `choose` reports; nothing is chosen by
    # chance.
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
        f"{call.op} is pinned to {name!r}, which is not a kernel of it; "
        f"{suggest_names(name, known)}",
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
