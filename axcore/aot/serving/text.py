"""A report of a model that serves, as plain text."""

from collections.abc import Iterator

from axcore.aot.report.report import no_times, show_bytes, show_seconds
from axcore.aot.serving.report import CallCost, FirstToken, ServingReport
from axcore.report.table import columns

_PARTS = ("BANDWIDTH", "COMPILED", "WAITING", "OVER FLOOR", "BOUND BY")
FIRST = ("BESIDE", "PIECES", "TIME", "AT MOST", *_PARTS)
DECODE = ("ROWS", "TIME", "TOKENS/S", *_PARTS)


def serving_text(report: ServingReport) -> str:
    """Return the report as lines of text."""
    parts = (_head(report), _memory(report), _times(report), _remarks(report), _kernels(report))
    return "\n".join(line.rstrip() for part in parts for line in part)


def _head(report: ServingReport) -> Iterator[str]:
    mesh = " x ".join(f"{name} {size}" for name, size in report.mesh.items()) or "1 device"
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    pages = "no pages" if report.page_size is None else f"pages of {report.page_size}"
    programs = f"{report.num_compiled} of its {report.num_programs} programs"
    yield f"{report.experiment} serving on {report.target}: {_verdict(report)}"
    yield ""
    yield f"mesh      {mesh}, {report.chips} chips"
    yield f"engine    {report.max_num_seqs} rows of {report.context:,} tokens, {pages}"
    yield f"calls     {report.max_num_batched_tokens} tokens of prompts, else {_tokens(report)}"
    yield f"compiler  {report.compiler} ({versions})"
    yield f"took      {report.compile_s:.1f} s to compile {programs}"
    if report.limits:
        yield f"limits    {report.limits}"


def _tokens(report: ServingReport) -> str:
    return f"{report.num_decode_steps} of each row"


def _verdict(report: ServingReport) -> str:
    pages, spare = report.num_pages, report.spare_bytes
    if spare is None:
        return f"weights take {show_bytes(report.weight_bytes)}; memory is not known"
    if spare < 0:
        return f"does not fit: {show_bytes(-spare)} too much"
    if pages is None or report.page_size is None or report.pages_that_fit is None:
        return f"fits: {show_bytes(spare)} to spare"
    whole = report.max_num_seqs * -(-report.context // report.page_size)
    rows = "all that its rows can need" if pages >= whole else f"of {whole:,} wanted"
    return f"fits: {pages:,} pages, {rows}; memory fits {report.pages_that_fit:,}"


def _memory(report: ServingReport) -> Iterator[str]:
    yield ""
    yield "memory of a device"
    pages = f"caches, {report.num_pages:,} pages" if report.num_pages else "caches"
    parts = (
        ("weights", report.weight_bytes),
        (pages, report.engine_cache_bytes),
        ("  a page", report.page_bytes),
        ("  more for each row", report.row_bytes),
        (f"programs, {report.num_programs}", report.program_bytes),
        ("temporaries of the largest", report.temporaries_bytes),
        ("sampling settings", report.drawing_bytes),
        ("to spare", report.spare_bytes or 0),
        ("of", report.capacity_bytes or 0),
    )
    for name, nbytes in parts:
        if nbytes:
            yield f"  {name:<32}{show_bytes(nbytes):>10}"


def _times(report: ServingReport) -> Iterator[str]:
    yield ""
    if any(one.seconds is None for one in report.decode):
        yield no_times(report.target)
        return
    yield f"first token after a prompt of {report.prompt:,}, next to rows that decode"
    yield columns(FIRST, [_first_row(one) for one in report.first])
    yield ""
    yield f"a token of each row, with {report.context:,} of each in caches"
    yield columns(DECODE, [_token_row(one) for one in report.decode])


def _first_row(one: FirstToken) -> tuple[str, ...]:
    seconds, waits = one.cost.seconds, one.waits_s
    most = None if seconds is None or waits is None else seconds + waits
    return (str(one.beside), _pieces(one), *map(show_seconds, (seconds, most)), *_parts(one.cost))


def _pieces(one: FirstToken) -> str:
    """Return how often a prompt is read in each length, as `2 x 256`."""
    counts = {size: one.pieces.count(size) for size in one.pieces}
    return " + ".join(f"{count} x {size}" for size, count in counts.items())


def _token_row(one: CallCost) -> tuple[str, ...]:
    rate = one.tokens_per_s
    shown = "unknown" if rate is None else f"{rate:,.0f}"
    return (str(one.rows), show_seconds(one.seconds), shown, *_parts(one))


def _parts(one: CallCost) -> tuple[str, ...]:
    over = "unknown" if one.over_floor is None else f"{one.over_floor:.2f}"
    times = map(show_seconds, (one.moved_s, one.compiled_s, one.waiting_s))
    return (*times, over, one.bound_by)


def _remarks(report: ServingReport) -> Iterator[str]:
    calls = (*(one.cost for one in report.first), *report.decode)
    most = max(one.num_collectives for one in report.decode)
    if most:
        yield f"{most} collectives a token; what each takes to begin is not counted"
    copied = max(one.copied_bytes for one in calls)
    if copied:
        yield f"caches are not written in place: {show_bytes(copied)} are copied"
    if any(one.unknown_loops for one in calls):
        yield "loops of unknown length count once"


def _kernels(report: ServingReport) -> Iterator[str]:
    yield ""
    yield "kernels"
    yield from (f"  {line}" for line in report.kernels)
