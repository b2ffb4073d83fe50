"""`docs/serving.md`: every block of Python prints what the page says."""

from pathlib import Path

import pytest
from pages import run_page

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.mark.slow
def test_every_block_of_python_prints_what_the_page_says():
    assert run_page(PAGE) >= 1
