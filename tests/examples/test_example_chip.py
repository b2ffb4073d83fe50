"""The example plugin: installed in a fresh environment, it trains `tiny` on a chip made up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "axl_example_chip"

QUICK = "--xla_backend_optimization_level=0"
"""A flag of the user's own, so that XLA compiles quickly; the example's flag joins it."""

SHORT = (
    *("--set", "model.dim=32", "--set", "**.num_layers=1", "--set", "**.hidden_dim=64"),
    *("--set", "data.seq_len=64", "--set", "data.heldout_batches=1"),
    *("--set", "max_steps=3", "--set", "**.warmup_steps=1", "--set", "log_every_steps=1"),
)


def test_example_is_at_most_60_lines():
    lines = [
        line
        for path in EXAMPLE.rglob("*.py")
        if "build" not in path.relative_to(EXAMPLE).parts
        for line in path.read_text().splitlines()
    ]
    assert 30 < len([line for line in lines if line.strip()]) <= 60


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Returns the variables under which the example, and no other plugin, is installed."""
    target = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "axl_example_chip"
    _copy(EXAMPLE, source)  # pip leaves a build folder behind
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    pip += ["--disable-pip-version-check", "--no-index", "--target", str(target), str(source)]
    subprocess.run(pip, check=True, capture_output=True)
    return {
        **os.environ,
        "PYTHONPATH": str(target),
        "AXCORE_PLUGINS": "axl-example-chip",
        "XLA_FLAGS": QUICK,
    }


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.suffix in (".py", ".toml", ".md") and "build" not in path.parts:
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


def axcore(*arguments: str, environment: dict[str, str], folder: Path):
    return subprocess.run(
        [sys.executable, "-m", "axcore.cli.main", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_tiny_trains_on_the_example_chip(installed, tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"This is text number {number}.\n" * 20)
    ran = axcore(
        *("train", "tiny", "--target", "example-x1-4", "--modify", "example_norm"),
        *("--modify", "text_files", "--set", "data.source.folder=.", *SHORT),
        *("--set", "data.heldout_fraction=0.2"),
        environment=installed,
        folder=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert "hardware: example-x1-4, mesh: data 2 x fsdp 2" in ran.stdout
    assert "cross_entropy example_loss" in ran.stdout
    run = tmp_path / "runs/tiny"
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert losses[0] > losses[-1] > 0
    assert "ExampleNorm" in (run / "config.txt").read_text()
    plan = {one["op"]: one["plugin"] for one in json.loads((run / "kernels.json").read_text())}
    assert plan == {"attention": "core", "cross_entropy": "axl-example-chip"}


@pytest.mark.slow
def test_example_passes_every_suite(installed, tmp_path):
    ran = axcore("plugin", "check", "axl-example-chip", environment=installed, folder=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
