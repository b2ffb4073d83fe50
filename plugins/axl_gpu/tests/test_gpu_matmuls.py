"""Which of our products and norms run unasked, and the benchmarks of them where there is no GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from axcore.errors import KernelError
from axcore.ops import KernelPolicy, choose
from axcore.ops.cross_entropy import contract as cross_entropy
from axcore.ops.grouped_matmul import contract as grouped_matmul
from axcore.ops.quantized.contract import FLOAT8
from axcore.ops.quantized.op import matmul_calls
from axcore.ops.rms_norm import contract as rms_norm
from axcore.plugins import Hardware

H100 = Hardware.parse("gpu-h100-8")
HOPPER = (H100, Hardware.parse("gpu-h200-8"))
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

NARROW = matmul_calls((8, 512, 1024), (1024, 4096), FLOAT8, dtype="bfloat16")

CALLS = {
    "cross_entropy": (cross_entropy.arg_spec(), "portable"),
    "rms_norm": (rms_norm.arg_spec(), "portable"),
    "grouped_matmul": (grouped_matmul.arg_spec(), "gpu_grouped_matmul"),
    "quantized_dot": (NARROW["forward"], "float8"),
}
OURS = {
    "cross_entropy": "gpu_cross_entropy",
    "rms_norm": "gpu_rms_norm",
    "grouped_matmul": "gpu_grouped_matmul",
    "quantized_dot": "gpu_float8_matmul",
}


@pytest.mark.parametrize("op", CALLS)
def test_ours_run_when_pinned_and_by_default_keep_nothing_else_from_running(op):
    call, default = CALLS[op]
    for hardware in HOPPER:
        assert choose(call, KernelPolicy(hardware=hardware)).kernel.name == default
        pinned = KernelPolicy(hardware=hardware, pins={op: OURS[op]})
        assert choose(call, pinned).kernel.name == OURS[op]


def test_the_float8_product_that_was_timed_in_no_step_is_taken_by_who_asks_for_the_fastest():
    for hardware in HOPPER:
        fastest = KernelPolicy(hardware=hardware, kernel_choice="fastest")
        assert choose(NARROW["forward"], fastest).kernel.name == "gpu_float8_matmul"


def test_pin_of_the_float8_product_says_why_gradients_are_not_its():
    policy = KernelPolicy(hardware=H100, pins={"quantized_dot": "gpu_float8_matmul"})
    with pytest.raises(KernelError, match="operands of one format, not float8_e4m3fn and"):
        choose(NARROW["input_gradient"], policy)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
@pytest.mark.parametrize("case", ["axcore_minimal", "torch_cudnn"])
@pytest.mark.quick_one_in(4)
def test_benchmark_says_what_is_missing_and_writes_nothing(case, tmp_path):
    command = [sys.executable, str(BENCHMARKS / "gpu_train_step.py"), case]
    into = {**os.environ, "BENCHMARK_RESULTS": str(tmp_path)}
    done = subprocess.run(command, env=into, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    if case == "axcore_minimal":
        assert "it lacks a GPU: jax found cpu alone" in done.stderr
    elif importlib.util.find_spec("torch") is None:
        assert "it lacks torch: it is not installed" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["axcore_minimal", "axcore_fp8_delayed", "axcore_fp8_current"])
def test_our_half_of_the_train_step_runs_at_a_toy_size(case, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from _train_step_axcore import measure_step, toy
    from gpu_train_step import CASES, Size

    size = Size(2, 2, 64)
    figures = measure_step(toy(CASES[case], size, tmp_path), size)
    assert figures["is_finite"]
    assert figures["tokens_per_s"] == pytest.approx(128 / figures["step_s"])
    assert any(line.startswith("cross_entropy: ") for line in figures["kernels"])
