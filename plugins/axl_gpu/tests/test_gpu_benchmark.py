"""The benchmark of our kernels says so where there is no GPU, and writes no figures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.slow
def test_without_a_gpu_nothing_is_measured_or_written():
    results = BENCHMARKS / "results" / "gpu_kernels.json"
    before = results.read_bytes() if results.exists() else None
    ran = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu_kernels.py", "--quick"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "nothing was measured: JAX sees no GPU here, only 'cpu'" in ran.stderr
    assert (results.read_bytes() if results.exists() else None) == before


@pytest.mark.slow
@pytest.mark.parametrize("slice_of_ten_minutes", ["1", "2", "3"])
def test_everything_that_run_sh_measures_can_start(slice_of_ten_minutes, tmp_path):
    ran = subprocess.run(
        [BENCHMARKS / "gpu" / "run.sh", "--dry-run", slice_of_ten_minutes],
        env={**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert ran.returncode == 0, "\n".join([ran.stdout, ran.stderr, *logs])
    assert len(ran.stdout.splitlines()) == len(logs) >= 2
