"""Records of ops, of the kernels that implement them, and of low-precision schemes."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

import attrs

from axcore.errors import PluginError
from axcore.hardware.hardware import Hardware, Predicate, predicate_reason, requires
from axcore.registration import (
    Record,
    Ref,
    a_callable,
    a_name,
    frozen_tuple,
    of_type,
    one_of,
    record,
    tuple_of,
)


@record(hook="ops")
@attrs.frozen(kw_only=True)
class Op(Record):
    """An operation that layers ask for, and that kernels implement.

    Args:
        name: As kernels name it.
        fn: The function that layers call.
        summary: One line.
        contract: The `axcore.testing.OpContract` by which suites prove its kernels right.
        arg_spec: `() -> Call`: what models typically ask of it, for `axcore kernels`.

    Example:
        @hook.ops
        def ops():
            yield Op(name="fft", fn=Ref("axl_acme.fft:fft"), summary="Fourier transform")
    """

    kind: ClassVar[str] = "op"

    name: str = attrs.field(validator=a_name)
    fn: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
    contract: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    arg_spec: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))


BANDS: Mapping[int, str] = {
    0: "reference",
    50: "portable",
    100: "portable-pallas",
    200: "hardware",
    300: "generation",
}
"""What a kernel's priority says about it."""


def _a_band(kernel: "Kernel", attribute: Any, value: Any) -> None:
    of_type(int)(kernel, attribute, value)
    if value not in BANDS:
        bands = ", ".join(f"{priority} ({band})" for priority, band in BANDS.items())
        raise PluginError(
            f"Kernel.priority is {value}; expected one of {bands}",
            hint="order kernels of one band by `preferred_to`, and set `pinned_only` for those "
            "that are not to be chosen",
        )


def _pinned_only(kernel: "Kernel") -> str | None:
    return "it defines what the op means" if kernel.priority == 0 else None


@record(hook="kernels")
@attrs.frozen(kw_only=True)
class Kernel(Record):
    """One implementation of an op, for the hardware and the calls that it names.

    Args:
        op: The op's name.
        name: Unique among the op's kernels; what pins and reports use.
        forward: The function; the op says how it is called.
        backward: Its gradient, a pure function of the residuals that the op fixes. It is a kernel
            of the op `{op}_backward` by the same name; one with predicates or block sizes of its
            own is a record of that op.
        is_differentiable: JAX differentiates `forward` as it is: plain jnp, or a library's function
            with a gradient. Otherwise the op chooses a backward kernel for it.
        partitioned_by: Who splits it over a mesh: the op, which calls it on each device's part of
            the arrays, or the compiler, which sees the full call. The latter suits plain jnp only.
        requires: From hardware to None, or why not there. Anywhere where not given.
        unsupported_reason: From an abstract call (shapes, dtypes, features) to None, or why it
            cannot be served.
        priority: The band: 0 reference, 50 portable, 100 portable Pallas, 200 hardware plugin, 300
            one generation only. References run only where they are pinned.
        validated_on: Globs of the chips (`acme-x1`, `acme-*`) on which the kernel has run and was
            timed, by its authors at least. By default it goes before kernels that never ran there.
        preferred_to: Names of kernels of the same op and band that it goes before.
        pinned_only: Why the kernel runs only where it is pinned; None where it may be chosen.
        block_sizes: Its `axcore.ops.BlockSizeTable`, where `axcore kernels tune` can measure which
            are best.
        summary: What it is, in one line; `axcore plugin check` asks for one.

    Example:
        @hook.kernels
        def kernels():
            yield Kernel(op="attention", name="acme_flash", priority=200,
                         requires=requires(family="acme"),
                         unsupported_reason=Ref("axl_acme.flash:unsupported_reason"),
                         forward=Ref("axl_acme.flash:attention"))
    """

    kind: ClassVar[str] = "kernel"
    key_fields: ClassVar[tuple[str, ...]] = ("op", "name")

    op: str = attrs.field(validator=a_name)
    name: str = attrs.field(validator=a_name)
    forward: Ref = attrs.field(validator=of_type(Ref))
    backward: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    is_differentiable: bool = attrs.field(default=False, validator=of_type(bool))
    partitioned_by: Literal["op", "compiler"] = attrs.field(
        default="op", validator=one_of("op", "compiler")
    )
    requires: Predicate = attrs.field(default=requires(), validator=a_callable)
    unsupported_reason: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    priority: int = attrs.field(validator=_a_band)
    validated_on: tuple[str, ...] = attrs.field(
        default=(), converter=frozen_tuple, validator=tuple_of(str)
    )
    preferred_to: tuple[str, ...] = attrs.field(
        default=(), converter=frozen_tuple, validator=tuple_of(str)
    )
    pinned_only: str | None = attrs.field(
        default=attrs.Factory(_pinned_only, takes_self=True), validator=of_type(str, type(None))
    )
    block_sizes: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    summary: str = attrs.field(default="", validator=of_type(str))

    def __attrs_post_init__(self) -> None:
        if self.backward is not None and self.is_differentiable:
            raise PluginError(
                f"kernel {self.key} is differentiable and has a backward function",
                hint="leave out one: JAX differentiates the kernel, or the op calls `backward`",
            )

    @property
    def band(self) -> str:
        """What `priority` says about the kernel, in a word."""
        return BANDS[self.priority]

    @property
    def is_portable(self) -> bool:
        """Whether the kernel is written for no hardware in particular."""
        return self.priority < 200

    def is_validated_on(self, hardware: Hardware) -> bool:
        """Return whether the kernel has run on this chip and was timed there."""
        return any(fnmatchcase(hardware.chip, chip) for chip in self.validated_on)

    @property
    def halves(self) -> "tuple[Kernel, ...]":
        """The kernel, and the backward kernel that its record names."""
        if self.backward is None:
            return (self,)
        op = f"{self.op}_backward"
        backward = attrs.evolve(self, op=op, forward=self.backward, backward=None, block_sizes=None)
        return self, backward

    def unsupported_hardware_reason(self, hardware: Hardware) -> str | None:
        """Return None where the kernel is meant for `hardware`, else the reason why it is not.

        Raises:
            PluginError: The predicate returned neither None nor a reason. What it raises itself
                gains a note.
        """
        return predicate_reason(self, self.requires, hardware)


@record(hook="quantization_schemes")
@attrs.frozen(kw_only=True)
class QuantizationScheme(Record):
    """A scheme that every product of a model can be switched to: `axcore train tiny --modify NAME`.

    A run whose config contains the scheme is refused on hardware that `requires` refuses, unless
    the config pins the kernel of `op` itself.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.layers.Dot`, with `grouped` for experts.
        requires: From hardware to None, or why not there. Anywhere where not given.
        op: The op that computes its products.
        summary: One line.

    Example:
        @hook.quantization_schemes
        def quantization_schemes():
            yield QuantizationScheme(name="acme_int4", config=Ref("axl_acme.int4:Int4.Config"),
                                     requires=requires(family="acme"),
                                     summary="int4 with scales per block")
    """

    kind: ClassVar[str] = "quantization scheme"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    requires: Predicate = attrs.field(default=requires(), validator=a_callable)
    op: str = attrs.field(default="quantized_dot", validator=a_name)
    summary: str = attrs.field(validator=of_type(str))

    def unsupported_hardware_reason(self, hardware: Hardware) -> str | None:
        """Return None where the scheme can run on `hardware`, else the reason why it cannot.

        Raises:
            PluginError: The predicate returned neither None nor a reason. What it raises itself
                gains a note.
        """
        return predicate_reason(self, self.requires, hardware)
