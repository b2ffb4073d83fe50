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
