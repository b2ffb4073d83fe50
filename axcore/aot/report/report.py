"""`Report`: the result of compiling a train step, as values and as JSON.

Bytes and FLOPs are those of one device, times those of a step; a chip may show several devices.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from axcore.config.json_files import parse_json

UNKNOWN = "unknown"

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_bytes(nbytes: float) -> str:
    """Return `10.8 GiB`, with three digits that count.

    >>> show_bytes(11622099648)
    '10.8 GiB'
    """
    size = float(nbytes)
    unit = 0
    while abs(size) >= 1000 and unit < len(_BYTES) - 1:
        size /= 1024
        unit += 1
    return f"{size:.3g} {_BYTES[unit]}"


def show_seconds(seconds: float | None) -> str:
    """Return `2.47 s`, `12.3 ms` or `unknown`.

    >>> show_seconds(0.0123)
    '12.3 ms'
    """
    if seconds is None:
        return UNKNOWN
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def show_count(number: float) -> str:
    """Return `8.14e+14`, or a small number in full."""
    return f"{number:,.0f}" if number < 1e6 else f"{number:.3g}"


def without_unknown(
    header: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns in which no row has a figure."""
    kept = [at for at in range(len(header)) if not all(row[at] == UNKNOWN for row in rows)]
    return [header[at] for at in kept], [[row[at] for at in kept] for row in rows]


def no_times(target: str) -> str:
    """Return the line in place of times where a target's figures are not known."""
    return f"no times: how fast {target} computes is not known"


@attrs.frozen(kw_only=True)
class LargeBuffer:
    """Buffers of one size and origin, alive where the program needs most memory.

    Args:
        nbytes: Bytes of one.
        shape: Dtype and sizes of one.
        module: What makes them.
        is_activation: Whether the backward pass reads them.
        count: How many there are.
    """

    nbytes: int
    shape: str
    module: str
    is_activation: bool
    count: int = 1

    @property
    def size_text(self) -> str:
        """Its bytes as people read them, as `4 x 2 MiB` where there are several."""
        return f"{self.count} x " * (self.count > 1) + show_bytes(self.nbytes)


@attrs.frozen(kw_only=True)
class Memory:
    """A device's memory, in bytes.

    Args:
        capacity_bytes: What a program can have; None where it is not known.
        peak_bytes: What the program needs at once.
        parameters_bytes: The model's state.
        optimizer_bytes: The optimizer's state.
        batch_bytes: The batch and the step's counters.
        temporaries_bytes: What the program allocates while it runs.
        activations_bytes: Of those, what the forward pass keeps for the backward pass at the peak.
        program_bytes: The program itself.
        host_bytes: What it keeps in the host's memory.
        largest: The largest buffers alive at the peak, what takes most together first.
    """

    capacity_bytes: int | None = None
    peak_bytes: int
    parameters_bytes: int
    optimizer_bytes: int
    batch_bytes: int
    temporaries_bytes: int
    activations_bytes: int = 0
    program_bytes: int = 0
    host_bytes: int = 0
    largest: tuple[LargeBuffer, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether the program fits the device; None where its memory is not known."""
        return None if self.capacity_bytes is None else self.peak_bytes <= self.capacity_bytes


@attrs.frozen(kw_only=True)
class ModuleCost:
    """What a module takes in a step, the modules below it not counted."""

    module: str
    flops: float
    nbytes: float
    sent_bytes: float
    seconds: float | None


@attrs.frozen(kw_only=True)
class CollectiveCost:
    """Collectives of one kind in one module: how many run, and what a device sends.

    Args:
        kind: What they do.
        module: Whose they are.
        count: How many run.
        sent_bytes: By a device, in all.
        is_hidden: Whether other work can run meanwhile.
        waited_s: How long a step waits for them; None where that is not known.
    """

    kind: str
    module: str
    count: int
    sent_bytes: float
    is_hidden: bool
    waited_s: float | None


@attrs.frozen(kw_only=True)
class StepTime:
    """A step's predicted time, and what it is added up from; None where figures are missing.

    Args:
        source: `cycles`, the compiler's own estimates, or `roofline`.
        cycles: The estimates' sum, with loops counted; kernels have none.
        compute_s: What the compiler wrote.
        products_s: Of that, by a roofline, what products take; the rest moves bytes.
        kernels_s: Kernels that it did not write.
        collectives_s: Waiting for collectives.
        step_s: All of it.
        mfu: Model FLOPs by `formula` over the chips' peak in that time.
        mfu_peak: The dtype of that peak; products may have a narrower one, and a higher peak.
        formula: Of the model FLOPs of a token.
        achievable_fraction: Shares of the hardware's figures that a roofline and transfers
            count with.
    """

    source: str
    cycles: int
    compute_s: float | None
    products_s: float | None = None
    kernels_s: float | None
    collectives_s: float | None
    step_s: float | None
    mfu: float | None
    mfu_peak: str = ""
    formula: str
    achievable_fraction: Mapping[str, float] = {}


@attrs.frozen(kw_only=True)
class Report:
    """The full report of one experiment on one target.

    Args:
        experiment: Its name.
        target: The hardware's name.
        chips: Chips of the target.
        compiler: What compiled it.
        limits: What the compiled program does not show of the hardware.
        versions: Of jax and jaxlib.
        mesh: Sizes of the mesh's axes above 1.
        pipelines: A line for each, with its bubble, which the step's time holds.
        batch: Rows of the full batch, and units (`tokens`) of a row.
        fits: Whether it fits; None where the target's memory is not known.
        refusal: What the compiler said, where it would not compile the program for lack of memory.
        changes: What the mesh rule changed of the config, as a diff.
        kernels: Which kernel serves each op, and why.
        memory: None where the compiler refused and gave no figure.
        time: None where the compiler refused.
        modules: Dearest first.
        collectives: Most bytes first.
        unknown_loops: Loops whose rounds cannot be read off, counted as one.
        lower_s: Seconds that tracing and lowering took here.
        compile_s: Seconds that compiling took here.
    """

    experiment: str
    target: str
    chips: int
    compiler: str
    limits: str = ""
    versions: Mapping[str, str] = {}
    mesh: Mapping[str, int] = {}
    pipelines: tuple[str, ...] = ()
    batch: Mapping[str, int] = {}
    fits: bool | None
    refusal: str = ""
    changes: str = ""
    kernels: tuple[str, ...] = ()
    memory: Memory | None = None
    time: StepTime | None = None
    modules: tuple[ModuleCost, ...] = ()
    collectives: tuple[CollectiveCost, ...] = ()
    unknown_loops: int = 0
    lower_s: float
    compile_s: float

    def describe_batch(self) -> str:
        """Return the batch as people read it: `8 rows of 128 tokens, 1,024 in all`."""
        if len(self.batch) == 1:  # a row is the unit itself
            return f"{self.batch['rows']:,} rows"
        (_, rows), (unit, count) = self.batch.items()
        return f"{rows:,} rows of {count:,} {unit}, {rows * count:,} in all"

    def to_json(self) -> str:
        """Return the report as JSON, with `predicted_step_s` and `predicted_mfu` at the top."""
        fields = attrs.asdict(self)
        fields["predicted_step_s"] = self.time.step_s if self.time else None
        fields["predicted_mfu"] = self.time.mfu if self.time else None
        return json.dumps(fields, indent=2)


def report_from_json(text: str) -> Report:
    """Return the report that `to_json` wrote."""
    fields: dict[str, Any] = parse_json(text)
    del fields["predicted_step_s"], fields["predicted_mfu"]
    memory, time = fields.pop("memory"), fields.pop("time")
    if memory is not None:
        largest = tuple(LargeBuffer(**one) for one in memory.pop("largest"))
        memory = Memory(**memory, largest=largest)
    return Report(
        memory=memory,
        time=None if time is None else StepTime(**time),
        modules=tuple(ModuleCost(**one) for one in fields.pop("modules")),
        collectives=tuple(CollectiveCost(**one) for one in fields.pop("collectives")),
        kernels=tuple(fields.pop("kernels")),
        pipelines=tuple(fields.pop("pipelines")),
        **fields,
    )
