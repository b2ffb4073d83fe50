"""`docs/plugins/failures.md`: every broken plugin of the tests, and what is printed of it.

`python tests/support/broken_plugins_page.py` writes it, in a checkout.
"""

import os
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broken_plugins import BrokenPlugin

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/plugins/failures.md"
BEGIN = "<!-- written by tests/support/broken_plugins_page.py from here on -->\n"


def cases() -> list["BrokenPlugin"]:
    """Returns all broken plugins, in the order of the page."""
    import broken_loading
    import broken_records

    found = [*broken_loading.CASES, *broken_records.CASES]
    order = list(dict.fromkeys(one.group for one in found))
    return sorted(found, key=lambda one: order.index(one.group))


def section(case: "BrokenPlugin", printed: str) -> str:
    """Returns what the page has of a broken plugin."""
    return f"{case.what}:\n\n```text\n{printed}\n```\n\n"


def page() -> str:
    """Returns the page: what a person wrote of it, and what all broken plugins print."""
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    parts = []
    for group, members in groupby(cases(), key=lambda one: one.group):
        sections = [section(one, one.printed()) for one in members]
        parts.append(f"## {group}\n\n{''.join(sections)}")
    return f"{head}{BEGIN}\n{''.join(parts).rstrip()}\n"


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, str(ROOT / "tests/support"))
    PAGE.write_text(page(), encoding="utf-8")
