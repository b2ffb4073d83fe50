"""The example plugin: installed in a fresh environment, it trains `tiny` on a chip made up."""

import json
from pathlib import Path

import pytest
from fresh_environment import FreshEnvironment
from quick_flags import xla_flags

EXAMPLE = Path(__file__).parents[2] / "examples" / "axl_example_chip"

SHORT = (
    *("--set", "model.dim=32", "--set", "**.num_layers=1", "--set", "**.hidden_dim=64"),
    *("--set", "data.seq_len=64", "--set", "data.validation_batches=1"),
    *("--set", "max_steps=3", "--set", "**.warmup_steps=1", "--set", "logging.every_steps=1"),
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
def fresh(tmp_path_factory):
    """A new environment with the example, and no other plugin, installed."""
    made = FreshEnvironment(
        tmp_path_factory.mktemp("fresh"), ["axl-example-chip"], flags=xla_flags()
    )
    made.install(EXAMPLE)
    return made


@pytest.mark.slow
def test_plugins_show_what_the_example_brings(fresh, tmp_path):
    ran = fresh.axcore("plugins", "--json", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (plugin,) = [one for one in json.loads(ran.stdout) if one["name"] == "axl-example-chip"]
    assert plugin["state"] == "loaded"
    assert set(plugin["hooks"]) >= {"hardware_families", "kernels", "layer_variants", "mesh_rules"}
    asked = "import axl_example_chip as package; print(package.__path__[0])"
    where = Path(fresh.run("-c", asked, folder=tmp_path).stdout.strip())
    assert where.is_relative_to(fresh.python.parents[1])


@pytest.mark.slow
def test_tiny_trains_on_the_example_chip(fresh, tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"This is text number {number}.\n" * 20)
    ran = fresh.axcore(
        *("train", "tiny", "--target", "example-x1-4", "--modify", "example_norm"),
        *("--modify", "text_files", "--set", "data.source.folder=.", *SHORT),
        *("--set", "data.validation_fraction=0.2"),
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
    assert plan == {"attention": "core", "rope": "core", "cross_entropy": "axl-example-chip"}


@pytest.mark.slow
def test_example_passes_every_suite(fresh, tmp_path):
    ran = fresh.axcore("plugin", "check", "axl-example-chip", folder=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
