"""The page about sound runs, and prints what it says."""

from pathlib import Path

import jax
import pytest
from pages import run_page

PAGE = Path(__file__).parents[3] / "docs" / "audio.md"


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the page writes files
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        assert run_page(PAGE) == 4
