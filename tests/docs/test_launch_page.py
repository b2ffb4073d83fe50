"""What the page on launching shows is what the commands print, and what it starts runs."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from quick_flags import xla_flags

from axcore.cli.main import group
from axcore.launch.process_info import COORDINATOR, NUM_PROCESSES, PROCESS_ID
from axcore.plugins import JobLauncher, plugin_host

PAGE = (Path(__file__).parents[2] / "docs" / "launch.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```\n(axcore launch [^\n]*)\n```\n\n```\w+\n(.*?)^```$", PAGE, re.M | re.S)
SHORT = (
    "--set=model.dim=32",
    "--set=model.decoder.stack.num_layers=1",
    "--set=**.hidden_dim=32",
    "--set=data.seq_len=32",
    "--set=data.validation_batches=1",
    "--set=**.warmup_steps=1",
    "--set=max_steps=3",
)


def commands(name):
    return re.findall(rf"^(axcore {name} .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "printed"), SHOWN, ids=[shown[0].split()[2] for shown in SHOWN]
)
def test_what_an_engine_is_given_is_what_the_page_shows(command, printed):
    ran = CliRunner().invoke(group, shlex.split(command)[1:])
    assert ran.exit_code == 0, ran.output
    assert ran.output == printed


def test_every_engine_is_on_the_page():
    core = [one.name for one in plugin_host().records(JobLauncher) if one.plugin == "core"]
    assert {shlex.split(command)[2] for command in commands("launch")} == set(core)


def test_flags_and_variables_stand_side_by_side():
    for flag, variable in (
        ("--coordinator", COORDINATOR),
        ("--num-processes", NUM_PROCESSES),
        ("--process-id", PROCESS_ID),
    ):
        assert f"| `{flag}` | `{variable}` |" in PAGE


@pytest.mark.slow
def test_the_run_on_this_machine_trains_with_two_processes(cli, tmp_path):
    (command,) = commands("launch local")
    ran = cli(*shlex.split(command)[1:], *SHORT, XLA_FLAGS=xla_flags())
    assert ran.exit_code == 0, ran.stderr
    assert "[0] hardware: cpu-4, mesh: fsdp 4" in ran.stdout
    assert "[0] done at step 3" in ran.stdout
    assert "[1] step" not in ran.stdout
    assert (tmp_path / "runs/tiny/checkpoints/step_00000003/manifest.json").exists()


@pytest.mark.slow
def test_steps_are_kept_where_the_page_says(cli, tmp_path):
    (command,) = commands("train")
    ran = cli(*shlex.split(command)[1:], *SHORT, XLA_FLAGS=xla_flags())
    assert ran.exit_code == 0, ran.stderr
    for place in ("fast/run", "durable/run"):
        assert (tmp_path / place / "step_00000003/manifest.json").exists()
    assert not (tmp_path / "runs/mirrored/checkpoints").exists()
    ran = cli("generate", "runs/mirrored", "--max-tokens", "2", XLA_FLAGS=xla_flags())
    assert ran.exit_code == 0, ran.stderr
