"""A page of held-out rows and what a model answered: HTML in one file, without a script."""

import base64
import html
import re
from collections.abc import Sequence
from typing import Protocol

from axcore.data import Media

_MOST_TEXT = 400
"""Characters of a text that are shown; the page says where there are more."""

_MOST_BYTES = 16 * 2**20
"""Of all files in a page; rows behind those that fill it are left out, and counted."""


class AnsweredRow(Protocol):
    """A row as `axcore.evaluation.shown_rows` returns it."""

    @property
    def media(self) -> tuple[Media, ...]:
        """What a model gets of it."""

    @property
    def asked(self) -> str:
        """The question, or nothing."""

    @property
    def wanted(self) -> str:
        """The right answer."""

    @property
    def answered(self) -> str:
        """The model's answer."""

    @property
    def is_right(self) -> bool:
        """Whether they are the same."""


def rows_page_html(rows: Sequence[AnsweredRow], *, title: str, lines: Sequence[str] = ()) -> str:
    """Return a page that shows each row with its answer, wrong ones marked.

    Args:
        rows: In the order of the page.
        title: What they are of.
        lines: What is said below the title, such as metrics.
    """
    shown, size = [], 0
    for row in rows:
        size += sum(len(one.content) for one in row.media)
        if size > _MOST_BYTES:
            break
        shown.append(row)
    right = sum(one.is_right for one in shown)
    counts = [f"{len(shown)} held-out rows, {right} answered right"]
    if left_out := len(rows) - len(shown):
        counts.append(f"{left_out} more are left out, as the page would be too large")
    head = "".join(f"<p>{html.escape(line)}</p>" for line in (*lines, *counts))
    cards = "".join(map(_card, shown))
    parts = {"TITLE": html.escape(title), "HEAD": head, "ROWS": cards}
    # In one pass: a text may contain such a word itself.
    return re.sub("TITLE|HEAD|ROWS", lambda found: parts[found[0]], _PAGE)


def _card(row: AnsweredRow) -> str:
    images = "".join(
        f'<img alt="" src="data:{one.mime};base64,{base64.b64encode(one.content).decode()}">'
        for one in row.media
    )
    verdict = "right" if row.is_right else "wrong"
    asked = f"<dt>asked</dt><dd>{_text(row.asked)}</dd>" if row.asked else ""
    wanted = "" if row.is_right else f"<dt>right is</dt><dd>{_text(row.wanted)}</dd>"
    return (
        f'<li class="{verdict}">{images}<dl>{asked}<dt>answer</dt><dd>{_text(row.answered)}</dd>'
        f"{wanted}</dl><b>{verdict}</b></li>"
    )


def _text(text: str) -> str:
    more = len(text) - _MOST_TEXT
    cut = text if more <= 0 else f"{text[:_MOST_TEXT]}... ({more:,} more characters)"
    return html.escape(cut) or "<i>nothing</i>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>TITLE</title>
<style>
:root { color-scheme: light dark;
  --page: light-dark(#f6f5f2, #131416); --card: light-dark(#fff, #1b1d20);
  --soft: light-dark(#6d6a64, #9a9993); --line: light-dark(#e3e0da, #2d3034);
  --bad: light-dark(#b3261e, #ff9d94); --good: light-dark(#1d7a43, #7fd6a0); }
body { margin: 0 auto; max-width: 1280px; padding: 32px 28px; background: var(--page);
  font: 15px/1.5 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 24px; margin: 0 0 6px; overflow-wrap: anywhere; }
p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
ul { list-style: none; margin: 24px 0 0; padding: 0; display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fill, minmax(168px, 1fr)); }
li { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 12px; }
li.wrong { border-color: var(--bad); }
img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 6px;
  image-rendering: pixelated; background: #000; margin-bottom: 8px; }
dl { margin: 0; display: grid; grid-template-columns: auto 1fr; gap: 2px 10px; font-size: 13px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; max-height: 12em; overflow: auto; }
b { font-size: 13px; font-weight: 600; color: var(--good); }
.wrong b { color: var(--bad); }
</style>
</head>
<body>
<h1>TITLE</h1>
HEAD
<ul>
ROWS
</ul>
</body>
</html>
"""
