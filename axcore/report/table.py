"""Plain text in columns, for output that people read and pipe, and tables of Markdown pages."""

from collections.abc import Sequence


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under a header, each column as wide as its widest cell, the last one free."""
    table = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under a header as a Markdown table."""
    table = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def page_with_table(page: str, table: str, begin: str, end: str) -> str:
    """Return a page with a table between two marks, in place of what is between them.

    Raises:
        ValueError: The first mark is not on the page once.
    """
    before, rest = page.split(begin)
    return f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
