"""A report as one page of HTML that needs nothing else: no script, no font, no picture."""

from collections.abc import Callable, Iterator, Sequence
from html import escape

import attrs

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
from axcore.aot.report.text import show_fractions, show_mfu, verdict

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2330; background: #fff; margin: 2rem auto;
       max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
.verdict { font-weight: 600; padding: .5rem .8rem; border-radius: .4rem; }
.yes { background: #e3f4e8; color: #14532d; } .no { background: #fde8e6; color: #7f1d1d; }
.unknown { background: #eef1f6; }
.note { color: #566074; font-size: .9rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #e3e7ee; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.path { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; margin-bottom: .8rem; }
pre { background: #f6f8fb; padding: .7rem; overflow-x: auto; font-size: .85rem; }
"""

NUM_ROWS = 15


def report_page(report: Report) -> str:
    """Return the page."""
    name = f"{escape(report.experiment)} on {escape(report.target)}"
    state = {True: "yes", False: "no", None: "unknown"}[report.fits]
    parts = (
        _facts(report),
        _memory(report.memory) if report.memory else (),
        _time(report, report.time) if report.time else (),
        _modules(report),
        _collectives(report),
        _kernels(report),
    )
    body = "\n".join(line for part in parts for line in part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n"
        f'<p class="verdict {state}">{escape(verdict(report))}</p>\n{body}\n</body>\n</html>\n'
    )


def _facts(report: Report) -> Iterator[str]:
    mesh = " x ".join(f"{name} {size}" for name, size in report.mesh.items()) or "1 device"
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    yield (
        f"<p>{report.describe_batch()}, a step over {report.chips} chips, mesh "
        f"{escape(mesh)}. Compiled by {escape(report.compiler)} ({escape(versions)}) in "
        f"{report.compile_s:.1f} s after {report.lower_s:.2f} s of tracing; it ran on no chip.</p>"
    )
    if report.limits:
        yield f'<p class="note">Limits: {escape(report.limits)}.</p>'


def _memory(memory: Memory) -> Iterator[str]:
    kept = min(memory.activations_bytes, memory.temporaries_bytes)
    parts = (
        _Bar("parameters", memory.parameters_bytes),
        _Bar("optimizer state", memory.optimizer_bytes),
        _Bar("batch and counters", memory.batch_bytes),
        _Bar("activations kept", kept),
        _Bar("other temporaries", memory.temporaries_bytes - kept),
        _Bar("program", memory.program_bytes),
    )
    yield "<h2>Memory of a device</h2>"
    yield stacked(parts, limit=memory.capacity_bytes, show=show_bytes)
    if memory.largest:
        yield "<h2>Largest buffers at the peak</h2>"
        yield _table(
            ("size", "shape", "made by", ""),
            [
                (
                    one.size_text,
                    one.shape,
                    one.module,
                    "kept for backward" if one.is_activation else "",
                )
                for one in memory.largest
            ],
            numbers=1,
        )


def _time(report: Report, time: StepTime) -> Iterator[str]:
    if time.compute_s is None:
        yield "<h2>Predicted step</h2>"
        yield (
            f'<p class="note">There are {escape(no_times(report.target))}. '
            f"Model FLOPs of a token: {escape(time.formula)}.</p>"
        )
        return
    yield f"<h2>Predicted step: {show_seconds(time.step_s)}, {show_mfu(time)}</h2>"
    parts = [
        _Bar(name, seconds)
        for name, seconds in (
            *_compute(time),
            ("kernels", time.kernels_s),
            ("waiting for collectives", time.collectives_s),
        )
        if seconds is not None
    ]
    if parts and time.step_s:
        yield stacked(parts, limit=None, show=show_seconds)
    source = (
        f"the compiler's own estimate of {time.cycles:.4g} cycles, loops counted"
        if time.source == "cycles"
        else "a roofline of FLOPs and bytes"
    )
    counted = f" Shares of the chip's figures that count: {escape(show_fractions(time))}." * bool(
        time.achievable_fraction
    )
    yield (
        f'<p class="note">Compute is {source}; kernels are the longer of their FLOPs and bytes. '
        f"Model FLOPs of a token: {escape(time.formula)}.{counted}</p>"
    )


def _compute(time: StepTime) -> tuple[tuple[str, float | None], ...]:
    """Return what the compiler wrote; of a roofline, by what it is bound."""
    if time.source == "cycles" or time.compute_s is None or time.products_s is None:
        return (("compute", time.compute_s),)
    return (("products", time.products_s), ("moving bytes", time.compute_s - time.products_s))


def _modules(report: Report) -> Iterator[str]:
    rows = report.modules[:NUM_ROWS]
    if not rows:
        return
    has_times = rows[0].seconds is not None
    yield "<h2>Modules</h2>"
    yield _bars(
        [_Bar(one.module, (one.seconds if has_times else one.flops) or 0.0) for one in rows],
        show=show_seconds if has_times else show_count,
    )
    yield _table(
        ("time", "FLOPs", "moved", "sent", "module"),
        [
            (
                show_seconds(one.seconds),
                show_count(one.flops),
                show_bytes(one.nbytes),
                show_bytes(one.sent_bytes),
                one.module,
            )
            for one in rows
        ],
        numbers=4,
    )


def _collectives(report: Report) -> Iterator[str]:
    if not report.collectives:
        return
    yield "<h2>Collectives</h2>"
    yield _table(
        ("sent", "count", "waited", "kind", "runs", "module"),
        [
            (
                show_bytes(one.sent_bytes),
                f"{one.count:,}",
                show_seconds(one.waited_s),
                one.kind,
                "under other work" if one.is_hidden else "alone",
                one.module,
            )
            for one in report.collectives[:NUM_ROWS]
        ],
        numbers=3,
    )


def _kernels(report: Report) -> Iterator[str]:
    yield "<h2>Kernels</h2>"
    yield f"<pre>{escape(chr(10).join(report.kernels))}</pre>"
    if report.changes:
        yield "<h2>What the mesh rule changed</h2>"
        yield f"<pre>{escape(report.changes)}</pre>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int) -> str:
    """Return a table whose first columns are numbers, without those that nobody knows."""

    numbers -= sum(all(row[at] == UNKNOWN for row in rows) for at in range(numbers))
    header, rows = without_unknown(header, rows)

    def line(cells: Sequence[str], tag: str) -> str:
        made = [
            f'<{tag} class="{"number" if place < numbers else "path"}">{escape(cell)}</{tag}>'
            for place, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(made)}</tr>"

    lines = [line(header, "th"), *(line(row, "td") for row in rows)]
    return f"<table>{''.join(lines)}</table>"


_COLOURS = ("#3b6fb6", "#7a9fd4", "#c3d3ea", "#e08a3c", "#f0be8c", "#8a94a6")
WIDTH = 900
_BAR_HEIGHT = 44
_ROW_HEIGHT = 24
_LABEL_WIDTH = 420
LETTERS = 58
"""Letters of a label that fit its width."""


@attrs.frozen
class _Bar:
    """A part with its size."""

    name: str
    size: float


def stacked(parts: Sequence[_Bar], *, limit: float | None, show: Callable[[float], str]) -> str:
    """Return one bar of all parts side by side, over a legend.

    Args:
        parts: From left to right.
        limit: Where a line is elements, such as a memory's capacity.
        show: A size as text.
    """
    shown = [part for part in parts if part.size > 0]
    total = sum(part.size for part in shown)
    whole = max(total, limit or 0.0) or 1.0
    elements, x = [], 0.0
    for place, part in enumerate(shown):
        width = WIDTH * part.size / whole
        title = escape(f"{part.name}: {show(part.size)}")
        elements.append(
            f'<rect x="{x:.1f}" y="20" width="{width:.1f}" height="{_BAR_HEIGHT}" '
            f'fill="{_COLOURS[place % len(_COLOURS)]}"><title>{title}</title></rect>'
        )
        x += width
    if limit:
        edge = WIDTH * limit / whole
        anchor = "end" if edge > WIDTH / 2 else "start"
        elements.append(
            f'<line x1="{edge:.1f}" x2="{edge:.1f}" y1="14" y2="{24 + _BAR_HEIGHT}" '
            'stroke="#b42318" stroke-width="3"/>'
            f'<text x="{edge:.1f}" y="11" font-size="12" text-anchor="{anchor}" fill="#b42318">'
            f"{escape(show(limit))} can be had</text>"
        )
    top = _BAR_HEIGHT + 44
    elements += [_legend(place, part, show(part.size), top) for place, part in enumerate(shown)]
    height = top + _ROW_HEIGHT * ((len(shown) + 2) // 3)
    return _svg(elements, height)


def _bars(parts: Sequence[_Bar], *, show: Callable[[float], str]) -> str:
    """Return one bar a part, below one another, each with its name and size."""
    most = max((part.size for part in parts), default=0.0) or 1.0
    full_width = WIDTH - _LABEL_WIDTH - 90
    elements = []
    for row, part in enumerate(parts):
        y = row * _ROW_HEIGHT
        width = full_width * part.size / most
        elements.append(
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 16}" font-size="12" text-anchor="end">'
            f"{escape(_shortened(part.name))}</text>"
            f'<rect x="{_LABEL_WIDTH}" y="{y + 4}" width="{width:.1f}" height="{_ROW_HEIGHT - 8}" '
            f'fill="{_COLOURS[0]}"/>'
            f'<text x="{_LABEL_WIDTH + width + 6:.1f}" y="{y + 16}" font-size="12">'
            f"{escape(show(part.size))}</text>"
        )
    return _svg(elements, _ROW_HEIGHT * len(parts))


def _legend(place: int, part: _Bar, size: str, top: int) -> str:
    x, y = (place % 3) * WIDTH / 3, top + _ROW_HEIGHT * (place // 3)
    colour = _COLOURS[place % len(_COLOURS)]
    return (
        f'<rect x="{x:.0f}" y="{y - 11}" width="12" height="12" fill="{colour}"/>'
        f'<text x="{x + 18:.0f}" y="{y}" font-size="13">{escape(f"{part.name}  {size}")}</text>'
    )


def _shortened(name: str) -> str:
    return name if len(name) <= LETTERS else f"...{name[3 - LETTERS :]}"


def _svg(elements: Sequence[str], height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="system-ui, sans-serif" role="img">{"".join(elements)}</svg>'
    )
