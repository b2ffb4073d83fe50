"""Bar charts as SVG text, for a page that needs nothing else."""

from collections.abc import Callable, Sequence
from html import escape

import attrs

COLOURS = ("#3b6fb6", "#7a9fd4", "#c3d3ea", "#e08a3c", "#f0be8c", "#8a94a6")
WIDTH = 900
BAR_HEIGHT = 44
ROW_HEIGHT = 24
LABEL_WIDTH = 420
LETTERS = 58
"""Letters of a label that fit its width."""


@attrs.frozen
class Bar:
    """A part with its size."""

    name: str
    size: float


def stacked(parts: Sequence[Bar], *, limit: float | None, show: Callable[[float], str]) -> str:
    """Returns one bar of all parts side by side, over a legend.

    Args:
        parts: From left to right.
        limit: Where a line is drawn, such as a memory's capacity.
        show: A size as text.
    """
    shown = [part for part in parts if part.size > 0]
    total = sum(part.size for part in shown)
    whole = max(total, limit or 0.0) or 1.0
    drawn, x = [], 0.0
    for place, part in enumerate(shown):
        width = WIDTH * part.size / whole
        title = escape(f"{part.name}: {show(part.size)}")
        drawn.append(
            f'<rect x="{x:.1f}" y="20" width="{width:.1f}" height="{BAR_HEIGHT}" '
            f'fill="{COLOURS[place % len(COLOURS)]}"><title>{title}</title></rect>'
        )
        x += width
    if limit:
        edge = WIDTH * limit / whole
        anchor = "end" if edge > WIDTH / 2 else "start"
        drawn.append(
            f'<line x1="{edge:.1f}" x2="{edge:.1f}" y1="14" y2="{24 + BAR_HEIGHT}" '
            'stroke="#b42318" stroke-width="3"/>'
            f'<text x="{edge:.1f}" y="11" font-size="12" text-anchor="{anchor}" fill="#b42318">'
            f"{escape(show(limit))} can be had</text>"
        )
    top = BAR_HEIGHT + 44
    drawn += [_legend(place, part, show(part.size), top) for place, part in enumerate(shown)]
    height = top + ROW_HEIGHT * ((len(shown) + 2) // 3)
    return _svg(drawn, height)


def bars(parts: Sequence[Bar], *, show: Callable[[float], str]) -> str:
    """Returns one bar a part, below one another, each with its name and size."""
    most = max((part.size for part in parts), default=0.0) or 1.0
    room = WIDTH - LABEL_WIDTH - 90
    drawn = []
    for row, part in enumerate(parts):
        y = row * ROW_HEIGHT
        width = room * part.size / most
        drawn.append(
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 16}" font-size="12" text-anchor="end">'
            f"{escape(_shortened(part.name))}</text>"
            f'<rect x="{LABEL_WIDTH}" y="{y + 4}" width="{width:.1f}" height="{ROW_HEIGHT - 8}" '
            f'fill="{COLOURS[0]}"/>'
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{y + 16}" font-size="12">'
            f"{escape(show(part.size))}</text>"
        )
    return _svg(drawn, ROW_HEIGHT * len(parts))


def _legend(place: int, part: Bar, size: str, top: int) -> str:
    x, y = (place % 3) * WIDTH / 3, top + ROW_HEIGHT * (place // 3)
    colour = COLOURS[place % len(COLOURS)]
    return (
        f'<rect x="{x:.0f}" y="{y - 11}" width="12" height="12" fill="{colour}"/>'
        f'<text x="{x + 18:.0f}" y="{y}" font-size="13">{escape(f"{part.name}  {size}")}</text>'
    )


def _shortened(name: str) -> str:
    return name if len(name) <= LETTERS else f"...{name[3 - LETTERS :]}"


def _svg(drawn: Sequence[str], height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="system-ui, sans-serif" role="img">{"".join(drawn)}</svg>'
    )
