"""The step by hand, which no other test runs, still does what axcore's does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "overhead.py"


@pytest.mark.slow
def test_the_step_by_hand_multiplies_and_learns_as_ours(tmp_path):
    environment = {**os.environ, "BENCHMARK_RESULTS": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), "--steps", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "overhead.json").read_text())["figures"]
    row = figures[figures["faster_by_hand"]]
    assert row["flops_of_products"]["ratio"] == 1.0
    assert row["loss_after_the_last_step"]["ratio"] == pytest.approx(1.0, abs=1e-3)
