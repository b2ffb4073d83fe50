"""`docs/parallelism.md`: every block of Python and every command does what the page says."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import commands, run_page
from quick_flags import quick_environment

PAGE = Path(__file__).parents[2] / "docs" / "parallelism.md"
COMMANDS = [
    pytest.param(
        command.code,
        id=command.code,
        marks=[pytest.mark.slow] if command.code.startswith("axcore train") else [],
    )
    for command in commands(PAGE)
]

SHORT = (
    "--set=model.dim=32",
    "--set=**.hidden_dim=32",
    "--set=data.seq_len=32",
    "--set=data.validation_batches=1",
    "--set=**.warmup_steps=1",
    "--set=max_steps=2",
)
"""What makes a training command short; everything else of it is as the page has it."""


def test_every_block_of_python_prints_what_the_page_says():
    assert run_page(PAGE) >= 8


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.quick_one_in(4)
def test_every_command_works(command, tmp_path):
    words = shlex.split(command)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "axcore", *words, *(SHORT if "train" in words else ())],
        cwd=tmp_path,
        env=quick_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "per device" in done.stdout or "loss" in done.stdout
