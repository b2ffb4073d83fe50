"""HTML in pieces: what reports and notebooks are made of, escaped, in one file.

Pieces take their colors from the text around them, so they fit light and dark pages alike.
"""

import html
import json
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

_STYLE = """
.axcore { font: 13px/1.5 ui-sans-serif, system-ui, sans-serif; max-width: 960px; margin: 4px 0;
  padding: 10px 14px; border-radius: 10px;
  border: 1px solid color-mix(in srgb, currentColor 18%, transparent);
  --soft: color-mix(in srgb, currentColor 62%, transparent); --accent: #4f7fe8; --bad: #d9534a; }
.axcore h4 { font-size: 14px; font-weight: 600; margin: 0; }
.axcore .soft { color: var(--soft); font-weight: 400; }
.axcore .accent { color: var(--accent); font-weight: 600; }
.axcore .bad { color: var(--bad); font-weight: 600; }
.axcore code { font: 12px/1.5 ui-monospace, Menlo, Consolas, monospace; color: inherit;
  background: none; padding: 0; overflow-wrap: anywhere; }
.axcore details { margin-left: 16px; }
.axcore summary { cursor: pointer; margin-left: -16px; }
.axcore .line { margin-left: 16px; }
.axcore .scroll { overflow: auto; max-height: 420px; margin-top: 6px; }
.axcore table { border-collapse: collapse; margin: 0; border: 0; font-size: 12.5px;
  color: inherit; }
.axcore tr, .axcore tr:hover { background: none !important; }
.axcore th, .axcore td { text-align: left; padding: 3px 14px 3px 0; color: inherit; border: 0;
  border-bottom: 1px solid color-mix(in srgb, currentColor 12%, transparent); white-space: nowrap; }
.axcore th { color: var(--soft); font-weight: 600; }
.axcore .number { text-align: right; font-variant-numeric: tabular-nums; padding: 3px 0 3px 14px; }
.axcore svg { display: block; width: 100%; max-width: 420px; margin-top: 8px; }
.axcore svg polyline { fill: none; stroke: var(--accent); stroke-width: 1.8; }
.axcore svg text { fill: currentColor; opacity: .62; font-size: 10px; }
"""


class Html(str):
    """Text that is HTML already; any other text is escaped where it becomes part of some."""


def element(name: str, *content: object, **attributes: str) -> Html:
    """Return an HTML element; `class_` is its class, an attribute that is "" has no value."""
    names = {key: key.rstrip("_").replace("_", "-") for key in attributes}
    shown = "".join(
        f' {names[key]}="{html.escape(value)}"' if value else f" {names[key]}"
        for key, value in attributes.items()
    )
    return Html(f"<{name}{shown}>{joined(content)}</{name}>")


def joined(content: Iterable[object]) -> Html:
    """Return pieces after one another, escaped but for those that are HTML."""
    return Html("".join(one if isinstance(one, Html) else html.escape(str(one)) for one in content))


def card(title: str, note: object, *body: object) -> Html:
    """Return a box for a notebook: a title, a note next to it, and what is below."""
    heading = element("h4", title, " ", element("span", note, class_="soft"))
    return element("div", element("style", Html(_STYLE)), heading, *body, class_="axcore")


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Collection[str] = ()
) -> Html:
    """Return a table that scrolls where it is long; `numbers` are columns aligned to the right."""
    kinds = ["number" if name in numbers else "text" for name in header]

    def row(tag: str, cells: Sequence[object]) -> Html:
        pairs = zip(cells, kinds, strict=True)
        return element("tr", *(element(tag, cell, class_=kind) for cell, kind in pairs))

    lines = [row("td", cells) for cells in rows]
    return element("div", element("table", row("th", header), *lines), class_="scroll")


def curve(steps: Sequence[float], values: Sequence[float], *, label: str) -> Html:
    """Return a small curve as SVG, with its lowest and highest value; "" of less than two points.

    Values that are not finite are left out.
    """
    points = [(x, y) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
    if len(points) < 2:
        return Html("")
    (first, last), (low, high) = (points[0][0], points[-1][0]), _range(y for _, y in points)
    across, down = 360 / ((last - first) or 1), 72 / ((high - low) or 1)
    line = " ".join(f"{(x - first) * across:.1f},{84 - (y - low) * down:.1f}" for x, y in points)
    notes = [(366, 15, f"{high:.4g}"), (366, 87, f"{low:.4g}"), (0, 100, f"step {first:g}")]
    return element(
        "svg",
        element("polyline", points=line),
        *(element("text", text, x=str(x), y=str(y)) for x, y, text in notes),
        element("text", f"{last:g}", x="360", y="100", text_anchor="end"),
        viewBox="0 0 420 104",
        role="img",
        aria_label=label,
    )


def _range(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return min(found), max(found)


def embedded_json(value: Any) -> str:
    """Return JSON for a script of a page; text in it that would end the script cannot.

    Raises:
        ValueError: A number in it is not finite.
    """
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
