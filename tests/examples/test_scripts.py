"""The examples that are scripts run, and show what they say."""

import subprocess
import sys
from pathlib import Path

import pytest
from quick_flags import quick_environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(script, folder):
    """Runs a script in a folder, on one device, as a user would."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        cwd=folder,
        env=quick_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_experts_take_ten_lines_and_go_into_every_family(tmp_path):
    function = (EXAMPLES / "experts.py").read_text().split("def with_experts")[1]
    assert len(function.split("\ndef ")[0].strip().splitlines()) <= 10
    printed = output_of("experts.py", tmp_path)
    assert "mistral 7b: 7.2B parameters, with experts 46.7B" in printed
    assert "validation loss after 20 steps: 3." in printed


@pytest.mark.slow
def test_two_machines_differ_in_what_their_rules_name(tmp_path):
    tpu, gpu = output_of("two_machines.py", tmp_path).split("gpu-h100-64: 64 devices in 8 hosts")
    assert tpu.startswith("tpu-v5e-256: 256 devices in 64 hosts")
    assert "Int8Dynamic" in tpu
    assert "remat.offload: ('attention_query'" in tpu
    assert "Fp8Current" in gpu
    assert "+ mesh: {'data': -1, 'fsdp': 8}" in gpu
    assert "+ num_micro_batches: 4" in gpu


@pytest.mark.slow
def test_steps_are_compiled_for_machines_that_are_not_here(tmp_path):
    printed = output_of("ahead_of_time.py", tmp_path)
    assert printed.startswith("cpu-8: fits None, ")
    assert printed.rstrip().endswith("step unknown")
