"""The pages that users read first: every command and every block of Python on them works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from quick_flags import compile_cache, quick_environment

from axcore.cli.main import group

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    ROOT / page
    for page in (
        "README.md",
        "docs/training.md",
        "docs/data.md",
        "docs/aot.md",
        "docs/kernels.md",
    )
)

SHORT = (
    "--set=model.dim=32",
    "--set=model.decoder.stack.num_layers=1",
    "--set=**.hidden_dim=32",
    "--set=data.seq_len=32",
    "--set=data.heldout_batches=1",
    "--set=**.warmup_steps=1",
    "--set=max_steps=3",
)
"""What makes a training command short; everything else of it is as the page has it."""


def blocks(page, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [body for name, body in found if name == language]


def commands(page):
    lines = [
        line.split("  #")[0].strip() for block in blocks(page, "") for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("axcore ")]


def run(*command, cwd):
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**quick_environment(), **compile_cache(cwd.with_name("compiled"))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a user of the pages stands."""
    return tmp_path_factory.mktemp("user")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_work_in_the_order_given(page, folder):
    found = commands(page)
    assert found or page.stem == "data"
    for command in found:
        words = shlex.split(command)[1:]
        short = SHORT if words[0] == "train" else ()
        done = run("-m", "axcore.cli.main", *words, *short, cwd=folder)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_of_a_page_runs(page, folder):
    for number, block in enumerate(blocks(page, "python")):
        shortened = re.sub(r'"max_steps": \d+', '"max_steps": 3', block)
        shortened = re.sub(r'"\*\*\.warmup_steps": \d+', '"**.warmup_steps": 1', shortened)
        script = folder / f"{page.stem}_{number}.py"
        script.write_text(shortened)
        done = run(str(script), cwd=folder)
        assert done.returncode == 0, f"block {number} of {page.name}\n{done.stderr}"
        if "print(" in block:
            assert done.stdout


def test_inline_commands_name_subcommands_that_exist():
    for page in PAGES:
        for name in re.findall(r"`axcore ([a-z]+)", page.read_text()):
            assert name in group.list_commands(None), f"{page.name}: axcore {name}"


def test_links_lead_to_files():
    for page in (*PAGES, *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_make_targets_of_the_readme_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(blocks(PAGES[0], "")), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
