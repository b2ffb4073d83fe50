"""Every block of these pages runs, and prints what the page says."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest
from pages import python_blocks, run_page

ROOT = Path(__file__).parents[2]
PAGES = (
    "attention.md",
    pytest.param("audio.md", marks=pytest.mark.slow),
    "checkpoints.md",
    pytest.param("arrays.md", marks=pytest.mark.slow),
    "config.md",
    "data.md",
    "image-generation.md",
    "lora.md",
    "modules.md",
    "moe.md",
    "ops.md",
    "optimizers.md",
    pytest.param("pictures.md", marks=pytest.mark.slow),
    pytest.param("text-encoders.md", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_the_page_runs_and_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # pages write files
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        assert run_page(ROOT / "docs" / name) >= 2


def test_a_page_that_prints_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n2\n```\n")
    assert [block.printed for block in python_blocks(page)] == [None, "2\n"]
    with pytest.raises(AssertionError, match=r"page.md:6 prints\n1"):
        run_page(page)


@pytest.mark.slow
def test_the_system_from_nothing_is_short_and_runs() -> None:
    file = ROOT / "examples" / "from_nothing.py"
    assert len(file.read_text().splitlines()) < 150
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert "loss" in done.stdout
    first, last = (float(line.split()[-1]) for line in done.stdout.splitlines()[-2:])
    assert last < 0.2 * first
