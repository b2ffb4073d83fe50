"""A report of a model that serves, as plain text."""

from collections.abc import Iterator

from axcore.aot.report.units import no_times, show_bytes, show_seconds
from axcore.aot.serving.report import CallCost, ServingReport
from axcore.report.table import columns

HEADER = ("ROWS", "TIME", "TOKENS/S", "BANDWIDTH", "COMPILED", "WAITING", "OVER FLOOR", "BOUND BY")


def serving_text(report: ServingReport) -> str:
    """Returns the report as lines of text."""
    parts = (_head(report), _memory(report), _times(report), _remarks(report), _kernels(report))
    return "\n".join(line.rstrip() for part in parts for line in part)


def _head(report: ServingReport) -> Iterator[str]:
    mesh = " x ".join(f"{name} {size}" for name, size in report.mesh.items()) or "1 device"
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    took = sum(one.compile_s for one in (report.prefill, *report.decode))
    yield f"{report.experiment} serving on {report.target}: {_verdict(report)}"
    yield ""
    yield f"mesh      {mesh}, {report.chips} chips"
    yield f"load      prompts of {report.prompt:,} tokens, {report.context:,} of each row in caches"
    yield f"compiler  {report.compiler} ({versions})"
    yield f"took      {took:.1f} s to compile {1 + len(report.decode)} programs"
    if report.limits:
        yield f"limits    {report.limits}"


def _verdict(report: ServingReport) -> str:
    pages, spare = report.pages_that_fit, report.spare_bytes
    if spare is None:
        return f"weights take {show_bytes(report.weight_bytes)}; memory is not known"
    if spare < 0:
        return f"does not fit: {show_bytes(-spare)} too much without a token in caches"
    if pages is None:
        return f"fits: {show_bytes(spare)} to spare"
    tokens = pages * report.page_size
    return f"fits: {pages:,} pages beside weights, {tokens:,} tokens in caches"


def _memory(report: ServingReport) -> Iterator[str]:
    calls = (report.prefill, *report.decode)
    yield ""
    yield "memory of a device"
    parts = (
        ("weights", report.weight_bytes),
        ("programs", sum(one.program_bytes for one in calls)),
        ("temporaries of the largest", max(one.temporaries_bytes for one in calls)),
        ("caches, a token", report.token_bytes),
        (f"caches, a page of {report.page_size}", report.page_bytes),
        ("caches, a row besides", report.row_bytes),
        ("left for pages", report.spare_bytes or 0),
        ("of", report.capacity_bytes or 0),
    )
    for name, nbytes in parts:
        if nbytes:
            yield f"  {name:<32}{show_bytes(nbytes):>10}"


def _times(report: ServingReport) -> Iterator[str]:
    yield ""
    if report.prefill.seconds is None:
        yield no_times(report.target)
        return
    yield f"first token {show_seconds(report.prefill.seconds)} after a prompt of {report.prompt:,}"
    yield columns(HEADER, [_row(report.prefill)])
    yield ""
    yield "a token of each row"
    yield columns(HEADER, [_row(one) for one in report.decode])


def _row(one: CallCost) -> tuple[str, ...]:
    rate, over = one.tokens_per_s, one.over_floor
    return (
        str(one.rows),
        show_seconds(one.seconds),
        "unknown" if rate is None else f"{rate:,.0f}",
        show_seconds(one.moved_s),
        show_seconds(one.compiled_s),
        show_seconds(one.waiting_s),
        "unknown" if over is None else f"{over:.2f}",
        one.bound_by,
    )


def _remarks(report: ServingReport) -> Iterator[str]:
    calls = (report.prefill, *report.decode)
    most = max(one.num_collectives for one in calls)
    if most:
        yield f"{most} collectives a call; what each takes to begin is not counted"
    copied = max(one.copied_bytes for one in calls)
    if copied:
        yield f"caches are not written in place: {show_bytes(copied)} are copied"
    if any(one.unknown_loops for one in calls):
        yield "loops of unknown length count once"


def _kernels(report: ServingReport) -> Iterator[str]:
    yield ""
    yield "kernels"
    yield from (f"  {line}" for line in report.kernels)
