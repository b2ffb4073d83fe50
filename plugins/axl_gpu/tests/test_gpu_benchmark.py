"""The benchmarks of GPUs: one failure costs nothing else, and all of it starts where no GPU is."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
RUN = BENCHMARKS / "gpu" / "run.sh"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _record

    monkeypatch.setattr(_record, "RESULTS", tmp_path)


def figures_of(path):
    return json.loads(path.read_text())["figures"]


def refuse(*args):
    raise RuntimeError("out of shared memory\nand more")


def test_a_rival_that_fails_leaves_the_figures_of_the_others():
    from _gpu import Contest

    rivals = {"ours": refuse, "cudnn": lambda x: x + 1}
    found = Contest(name="any", rivals=rivals, arguments=(jnp.ones(8),), flops=8.0).compete()
    assert found["rivals"]["ours"] == {"failed": "RuntimeError: out of shared memory"}
    assert found["rivals"]["cudnn"]["median_ms"] > 0
    assert found["ours_over_best_rival"] is None


def test_a_kernel_that_breaks_the_device_leaves_the_turn_that_others_had(monkeypatch):
    import _gpu

    monkeypatch.setattr(_gpu, "device_answers", lambda: False)
    contest = _gpu.Contest(name="any", rivals={}, arguments=(jnp.ones(8),))
    failures = {}
    seconds = contest._seconds({"cudnn": lambda x: x + 1, "ours": refuse}, failures)
    assert list(seconds) == ["cudnn"]
    assert list(failures) == ["ours"]


def stub_of(measure):
    card = lambda: ("NVIDIA H100 80GB HBM3", 79.0)  # noqa: E731
    return SimpleNamespace(missing_reason=lambda: None, card=card, measure=measure)


def test_a_step_that_does_not_fit_is_recorded_beside_those_that_do(monkeypatch, tmp_path):
    import gpu_train_step

    monkeypatch.setattr(gpu_train_step, "record", write_to(tmp_path))
    args = Namespace(layers=None, rows=None, tokens=None)
    sizes = []

    def step(seconds, **more):
        def measure(case, size):
            sizes.append(size)
            return {"step_s": seconds, **more}

        return stub_of(measure)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    work = {"flops": 3.0, "peak_flops": 2.0}
    for case, half in {
        "axcore_minimal": step(2.0, **work),
        "axcore_none": stub_of(refuse),
        "axcore_fp8_delayed": step(1.25, **work),
        "torch_cudnn": step(3.0),
        "torch_flash": step(2.5),
    }.items():
        name = "torch" if case.startswith("torch") else "axcore"
        monkeypatch.setitem(sys.modules, f"_train_step_{name}", half)
        assert gpu_train_step.measure(case, args) == (case == "axcore_none")
    found = figures_of(tmp_path / "gpu_h100_train_step.json")
    assert found["cases"]["axcore_none"]["failed"] == "RuntimeError: out of shared memory"
    assert found["best"] == {
        "mfu": {"axcore": 0.75, "axcore_fp8": 1.2, "torch": 0.6},
        "fp8_speedup": 1.6,
        "speedup_over_torch": 1.25,
    }
    assert set(sizes) == {gpu_train_step.Size(6, 2)}


def write_to(folder):
    def record(name, figures):
        (folder / f"{name}.json").write_text(json.dumps({"figures": figures}))

    return record


def test_figures_of_another_card_are_not_mixed(tmp_path):
    from _gpu import recorded

    write_to(tmp_path)("gpu_any", {"gpu": "a card", "contests": {"one": {}}})
    assert recorded("gpu_any", gpu="a card")["contests"] == {"one": {}}
    assert recorded("gpu_any", gpu="another") == {"gpu": "another"}


def test_no_card_writes_over_the_figures_of_another():
    from _gpu import results_name
    from axl_gpu.detect import _GENERATIONS

    names = {results_name("norm", gpu) for gpu in (*_GENERATIONS, "NVIDIA H100 PCIe", "NVIDIA L4")}
    assert len(names) == len(_GENERATIONS) + 2
    assert {"gpu_h100_norm", "gpu_h200_norm", "gpu_nvidia-h100-pcie_norm"} < names


def test_every_figure_of_a_card_is_in_a_file_that_names_it():
    from _gpu import results_name

    found = {path: figures_of(path) for path in (BENCHMARKS / "results").glob("gpu_*.json")}
    measured = {path: one["gpu"] for path, one in found.items() if "gpu" in one}
    assert set(measured.values()) == {"NVIDIA H100 80GB HBM3", "NVIDIA H200"}
    for path, gpu in measured.items():
        assert path.stem.startswith(results_name("", gpu)), path.name


def test_a_rival_that_dies_says_why(tmp_path, capsys):
    from _serving_rival import Rival

    script = tmp_path / "rival.py"
    script.write_text("import sys; print('no cuDNN here', file=sys.stderr); sys.exit(3)")
    rival = Rival(sys.executable, str(script))
    rival.stop()
    assert rival.failure == "the process ended with 3"
    assert (
        "failed: the process ended with 3; its last words:\nno cuDNN here"
        in capsys.readouterr().out
    )


def test_each_turn_of_serving_is_yielded_when_it_is_over():
    from serving import TASKS, measure

    figures = {"ms": 2.0, "processor_ms": 3.0, "peak_mib": 5, "tokens": [1]}
    asked = []
    rival = SimpleNamespace(ask=lambda task, **more: asked.append(task) or figures)
    first = next(measure({"axcore": rival}, rounds=2, count=4))
    assert asked == ["decode", "decode"]  # the first turn is not counted
    assert first["decode_1"]["axcore"]["ms"] == 2.0
    assert list(first) == ["decode_1"]
    *_, last = measure({"axcore": rival}, rounds=2, count=4)
    assert set(last) == set(TASKS)


def test_the_batch_of_a_step_has_no_documents_as_the_rival_has_none(tmp_path):
    from _train_step_axcore import batch, toy
    from gpu_train_step import CASES, Size

    size = Size(2, 2, 64)
    ours = toy(CASES["axcore_minimal"], size, tmp_path)
    assert set(batch(size, 256)) == set(ours.batch_spec.arrays)
    assert "segment_ids" not in ours.batch_spec.arrays


def test_packed_attention_meets_cudnn_packed_where_heads_are_equal():
    from _gpu_attention import packed, ragged

    equal = [one for one in (*packed(True), *ragged(True)) if "cudnn_packed" in one.rivals]
    assert [one.name for one in equal] == [
        "4096_key_heads_16_forward",
        "4096_key_heads_16_both",
        "4096_forward",
        "4096_both",
    ]
    assert all({"cudnn", "ours"} < set(one.rivals) for one in equal)


def test_every_kernel_is_compared_with_its_reference_on_the_chip():
    from gpu_correctness import TestKernel

    suite = TestKernel()
    assert [record.key for record in suite.records() if len(suite._trials(record)) < 2] == []


def test_the_loss_of_the_rival_and_its_gradients_are_those_of_all_logits():
    torch = pytest.importorskip("torch")
    from _train_step_torch import chunk_loss

    torch.manual_seed(0)
    x, w = torch.randn(6, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    targets = torch.arange(6)
    loss, dx, dw = chunk_loss(x.detach(), w.detach(), targets, 6)
    wanted = torch.nn.functional.cross_entropy(x @ w.T, targets)
    wanted.backward()
    for got, one in ((loss, wanted), (dx, x.grad), (dw, w.grad)):
        torch.testing.assert_close(got, one.detach())


NAMES = (
    "correctness_attention.gpu_flash_attention",
    "correctness_attention.gpu_packed_flash_attention",
    "correctness_attention.cudnn_attention",
    "correctness_attention.cudnn_packed_attention",
    "correctness_attention_backward.gpu_flash_attention",
    "correctness_grouped_matmul.gpu_grouped_matmul",
    "correctness_grouped_matmul.mosaic_grouped_matmul",
    "correctness_decode_attention.gpu_decode_attention",
    "correctness_cross_entropy.gpu_cross_entropy",
    "correctness_rms_norm.gpu_rms_norm",
    "correctness_quantized_dot.gpu_float8_matmul",
    "ceilings",
    "attention_causal",
    "attention_packed",
    "attention_ragged",
    "axcore_minimal",
    "torch_cudnn",
    "axcore_fp8_delayed",
    "torch_flash",
    "axcore_own_attention",
    "axcore_none",
    "axcore_fp8_current",
    "torch_cudnn_repeated",
    "decode",
    "loss",
    "float8",
    "norm",
    "grouped",
    "serving",
    "block_sizes_attention.gpu_flash_attention",
    "block_sizes_grouped_matmul.gpu_grouped_matmul",
    "block_sizes_attention_backward.gpu_flash_attention",
    "block_sizes_cross_entropy.gpu_cross_entropy",
    "axcore_unrolled",
    "axcore_save_gate",
    "axcore_own_loss",
    "axcore_fp8_none",
    "torch_cudnn_tuned",
)
"""Of all measurements, in the order of `run.sh`."""

PYTHON = """#!/usr/bin/env bash
case "$*" in
    *axcore_none*) exit 3 ;;
    *axcore_minimal*) sleep 60 ;;
esac
echo "ran ${@: -1} into $BENCHMARK_RESULTS, compiled into $JAX_COMPILATION_CACHE_DIR"
"""


def run(tmp_path, *wanted, **environment):
    return subprocess.run(
        [RUN, *wanted],
        env={**os.environ, "OUT": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_measurement_that_fails_or_hangs_costs_no_other(tmp_path):
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    out = tmp_path / "out"
    names = ("axcore_minimal", "axcore_none", "torch_flash")
    ran = run(out, *names, PYTHON=str(python), SLICE_SECONDS="22")
    words = {line.split("  ")[1]: line.split("  ")[2] for line in ran.stdout.splitlines()}
    assert ran.returncode == 1
    assert set(words) == set(names)
    assert words["axcore_minimal"].startswith("over ")
    assert words["axcore_none"] == words["torch_flash"] == "no time left"
    ran = run(out, "axcore_none", "torch_flash", PYTHON=str(python))
    words = {line.split("  ")[1]: line.split("  ")[2] for line in ran.stdout.splitlines()}
    assert words == {"axcore_none": "exit 3", "torch_flash": "done"}
    log = (out / "torch_flash.log").read_text()
    assert log == f"ran torch_flash into {out}, compiled into {out}/caches/jax\n"


def test_slices_measure_everything_in_order(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    ran = run(tmp_path / "out", PYTHON=str(python))
    lines = [line.split("  ") for line in ran.stdout.splitlines()]
    assert ran.returncode == 0
    first = {line[1] for line in lines if line[0] == "slice 1"}
    assert {name for name in NAMES if name.startswith("correctness")} < first
    assert {line[1] for line in lines} == set(NAMES)
    later = [line[1] for line in lines if not line[1].startswith("correctness")]
    assert later == [name for name in NAMES if not name.startswith("correctness")]


@pytest.mark.slow
def test_without_a_gpu_nothing_is_measured_or_written(tmp_path):
    ran = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu_kernels.py", "ceilings", "--quick"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "BENCHMARK_RESULTS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "nothing was measured: JAX sees no GPU here, only 'cpu'" in ran.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_everything_that_run_sh_measures_can_start(part, tmp_path):
    names = NAMES[part::6]
    ran = run(tmp_path, "--dry-run", *names, PYTHON=sys.executable)
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert ran.returncode == 0, "\n".join([ran.stdout, ran.stderr, *logs])
    assert len(ran.stdout.splitlines()) == len(logs) == len(names)


PYTHON_3_12 = os.environ.get("GPU_PACK_PYTHON") or shutil.which("python3.12")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(PYTHON_3_12 is None, reason="there is no python3.12; set GPU_PACK_PYTHON")
def test_what_is_packed_measures_from_another_folder(tmp_path):
    """The wheels that pack.sh makes, on Python 3.12 with jax 0.11.2, and nothing else."""
    wheels = tmp_path / "wheels"
    packing = {**os.environ, "PYTHON": PYTHON_3_12, "WHEELS": str(wheels), "PYTHONPATH": ""}
    subprocess.run([BENCHMARKS / "gpu" / "pack.sh"], env=packing, check=True)
    subprocess.run([PYTHON_3_12, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    image = ("jax==0.11.2", "numpy", "scipy")  # what the machine has by itself
    subprocess.run([python, "-m", "pip", "--quiet", "install", *image], check=True)
    ran = subprocess.run(
        [
            RUN,
            "--dry-run",
            "attention_causal",
            "axcore_minimal",
            "correctness_rms_norm.gpu_rms_norm",
        ],
        env={
            **os.environ,
            "PYTHON": str(python),
            "PYTHONPATH": "",
            "WHEELS": str(wheels),
            "OUT": str(tmp_path / "out"),
            "PIP_NO_INDEX": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    logs = [path.read_text() for path in (tmp_path / "out").glob("*.log")]
    assert ran.returncode == 0, "\n".join([ran.stdout, ran.stderr, *logs])
    assert ran.stdout.count("  done  ") == 3
