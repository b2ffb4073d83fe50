"""A report as plain text."""

from collections.abc import Iterator, Sequence

from axcore.aot.report.report import (
    UNKNOWN,
    Memory,
    Report,
    StepTime,
    no_times,
    show_bytes,
    show_count,
    show_seconds,
    without_unknown,
)
from axcore.aot.search import Attempt, fastest
from axcore.report.table import columns

NUM_ROWS = 12
"""Modules and collectives shown; JSON has all of them."""


def report_text(report: Report) -> str:
    """Return the report as lines of text."""
    return "\n".join(
        line.rstrip()
        for part in (
            _head(report),
            _memory(report.memory) if report.memory else (),
            _time(report, report.time) if report.time else (),
            _modules(report),
            _collectives(report),
            _kernels(report),
        )
        for line in part
    )


def verdict(report: Report) -> str:
    """Return whether the step fits, and by how much, in one line."""
    memory = report.memory
    if report.fits is None:
        return f"needs {show_bytes(memory.peak_bytes if memory else 0)}; memory is not known"
    if memory is None:
        return f"does not fit: {report.refusal}"
    return verdict_of(memory.peak_bytes, memory.capacity_bytes, fits=report.fits)


def verdict_of(peak_bytes: int, capacity_bytes: int | None, *, fits: bool | None) -> str:
    """Return whether so many bytes fit, and by how much, in one line."""
    if capacity_bytes is None:
        return f"needs {show_bytes(peak_bytes)}; memory is not known"
    spare = capacity_bytes - peak_bytes
    needs = f"needs {show_bytes(peak_bytes)} of {show_bytes(capacity_bytes)}"
    if spare < 0 or not fits:
        return f"does not fit: {needs}, {show_bytes(max(0, -spare))} too much"
    return f"fits: {needs}, {show_bytes(spare)} to spare"


def _head(report: Report) -> Iterator[str]:
    mesh = " x ".join(f"{name} {size}" for name, size in report.mesh.items()) or "1 device"
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    yield f"{report.experiment} on {report.target}: {verdict(report)}"
    yield ""
    yield f"mesh      {mesh}, {report.chips} chips"
    yield from (f"pipeline  {line}" for line in report.pipelines)
    yield f"batch     {report.describe_batch()}"
    yield f"compiler  {report.compiler} ({versions})"
    yield f"took      {report.lower_s:.2f} s to lower, {report.compile_s:.1f} s to compile"
    if report.limits:
        yield f"limits    {report.limits}"
    if report.refusal:
        yield f"refused   {report.refusal}"


def _memory(memory: Memory) -> Iterator[str]:
    yield ""
    yield "memory of a device"
    parts = (
        ("parameters", memory.parameters_bytes),
        ("optimizer state", memory.optimizer_bytes),
        ("batch and counters", memory.batch_bytes),
        ("temporaries", memory.temporaries_bytes),
        ("  activations kept for backward", memory.activations_bytes),
        ("program", memory.program_bytes),
        ("at once", memory.peak_bytes),
        ("in the host's memory", memory.host_bytes),
    )
    for name, nbytes in parts:
        if nbytes or name in ("temporaries", "at once"):
            yield f"  {name:<32}{show_bytes(nbytes):>10}"
    if memory.largest:
        yield ""
        rows = [
            (one.size_text, one.shape, one.module + " (kept)" * one.is_activation)
            for one in memory.largest
        ]
        yield columns(("LARGEST BUFFERS", "SHAPE", "MADE BY"), rows)


def _time(report: Report, time: StepTime) -> Iterator[str]:
    yield ""
    if time.compute_s is None:
        yield no_times(report.target)
        yield f"  model FLOPs  {time.formula}"
        return
    yield f"predicted step {show_seconds(time.step_s)}, {show_mfu(time)}"
    if time.source == "cycles":
        yield f"  compute      {show_seconds(time.compute_s):>10}  {time.cycles:.4g} cycles"
    else:
        yield f"  compute      {show_seconds(time.compute_s):>10}  roofline: products take " + (
            f"{show_seconds(time.products_s)}, moving bytes the rest"
        )
    yield f"  kernels      {show_seconds(time.kernels_s):>10}  their FLOPs and bytes"
    yield f"  collectives  {show_seconds(time.collectives_s):>10}  waiting for them"
    yield f"  model FLOPs  {time.formula}"
    if time.achievable_fraction:
        yield f"  achievable   {show_fractions(time)}"
    if report.unknown_loops:
        yield f"  {report.unknown_loops} loops of unknown length count once" + (
            "; without them the step would be faster than its chips" * (time.step_s is None)
        )


def show_mfu(time: StepTime) -> str:
    """Return the model FLOPs utilisation, or why it is not known."""
    if time.mfu is not None:
        return f"MFU {100 * time.mfu:.1f} % of the {time.mfu_peak} peak"
    if time.step_s is None:
        return "MFU unknown"
    return f"MFU unknown, as the {time.mfu_peak} peak or the model FLOPs are"


def show_fractions(time: StepTime) -> str:
    """Return which shares of the hardware's figures a prediction counts with, as text."""
    return ", ".join(
        f"{name.replace('_', ' ').replace('/', ' by ')} {100 * share:.0f} %"
        for name, share in time.achievable_fraction.items()
    )


def _modules(report: Report) -> Iterator[str]:
    if not report.modules:
        return
    yield ""
    rows = [
        (
            one.module,
            show_seconds(one.seconds),
            show_count(one.flops),
            show_bytes(one.nbytes),
            show_bytes(one.sent_bytes),
        )
        for one in report.modules[:NUM_ROWS]
    ]
    yield columns(*without_unknown(("MODULE", "TIME", "FLOPS", "MOVED", "SENT"), rows))
    yield from _rest(len(report.modules))


def _collectives(report: Report) -> Iterator[str]:
    if not report.collectives:
        return
    yield ""
    rows = [
        (
            one.kind,
            str(one.count),
            show_bytes(one.sent_bytes),
            "under other work" if one.is_hidden else "alone",
            show_seconds(one.waited_s),
            one.module,
        )
        for one in report.collectives[:NUM_ROWS]
    ]
    yield columns(
        *without_unknown(("COLLECTIVE", "COUNT", "SENT", "RUNS", "WAITED", "MODULE"), rows)
    )
    yield from _rest(len(report.collectives))


def _kernels(report: Report) -> Iterator[str]:
    yield ""
    yield "kernels"
    yield from (f"  {line}" for line in report.kernels)


def _rest(count: int) -> Iterator[str]:
    if count > NUM_ROWS:
        yield f"and {count - NUM_ROWS} more; --json has all"


def search_text(attempts: Sequence[Attempt]) -> str:
    """Return a table of what a search tried, and which of it fits and is fastest."""
    rows = [
        (
            " ".join(attempt.changes) or "as it is",
            "yes" if attempt.fits else "no",
            _needs(attempt),
            show_seconds(attempt.report.time.step_s)
            if attempt.report and attempt.report.time
            else UNKNOWN,
        )
        for attempt in attempts
    ]
    best = fastest(attempts)
    found = "nothing that was tried fits"
    if best is not None:
        found = f"fastest that fits: {' '.join(best.changes) or 'as it is'}"
    return f"{columns(*without_unknown(('CHANGE', 'FITS', 'NEEDS', 'STEP'), rows))}\n{found}"


def _needs(attempt: Attempt) -> str:
    if attempt.report is None:
        return f"cannot be made: {attempt.reason}"
    return show_bytes(attempt.report.memory.peak_bytes) if attempt.report.memory else "too much"
