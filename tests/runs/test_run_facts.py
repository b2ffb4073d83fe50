"""What a report shows of a run is what the run wrote, and damage hides nothing else."""

import json
import os
import shutil

import attrs
import numpy as np
import pytest

import axcore as ax
from axcore.data import Mixture, NewWeights, TextFiles
from axcore.errors import CheckpointError, ConfigError
from axcore.runs import run_facts
from axcore.runs.run_facts import mixture_shares


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


@pytest.mark.slow
def test_facts_are_those_of_the_run(run):
    facts, opened = run_facts(run), ax.load_run(run)
    assert (facts.name, facts.state, facts.step, facts.max_steps) == ("run", "done", 2, 2)
    np.testing.assert_allclose(facts.curves["train"]["loss"], opened.metrics["train"]["loss"])
    leaves = opened.model.init(0)
    sizes = [leaf.size for leaf in _leaves(leaves)]
    assert facts.num_params == sum(sizes)
    assert facts.memory["parameters"] == 4 * sum(sizes)
    assert {choice["op"] for choice in facts.kernels} >= {"attention", "rms_norm"}
    assert "model.dim: 32" in facts.config
    assert facts.problems == []
    json.dumps(attrs.asdict(facts), allow_nan=False)


def _leaves(tree):
    return (
        [leaf for one in tree.values() for leaf in _leaves(one)]
        if isinstance(tree, dict)
        else [tree]
    )


def test_tokens_and_time_add_up_over_the_lines(run):
    lines = [
        {"split": "train", "step": 10, "loss": 1.0, "tokens_per_s": 50.0, "step_time_s": 2.0,
         "wall_clock_tokens_per_s": 50.0},
        {"split": "validation", "step": 15, "loss": 1.0},
        {"split": "train", "step": 20, "loss": "nan", "tokens_per_s": 50.0, "step_time_s": 2.0,
         "wall_clock_tokens_per_s": 25.0},
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    curves = run_facts(run).curves
    assert curves["train"]["tokens"] == [1000.0, 2000.0]
    assert curves["train"]["seconds"] == [20.0, 60.0]
    assert curves["train"]["loss"] == [1.0, None]
    assert (curves["validation"]["tokens"], curves["validation"]["seconds"]) == ([1500.0], [40.0])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", "{\n"),
        ("first_batch.npz", "PK"),
        ("samples.jsonl", "{"),
        ("evaluation/2/arc.json", "{}"),
        ("kernels.json", "{"),
        ("goodput.json", "[]"),
        ("memory.json", '{"peak_bytes": 1}'),
        ("config.json", "{}"),
        ("run_history.jsonl", '{"hardware": 3}'),
    ],
)
def test_what_is_damaged_is_named_and_the_rest_is_shown(run, name, text):
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_text(text)
    facts = run_facts(run)
    assert facts.problems
    assert facts.step == 2 or name == "metrics.jsonl"
    assert facts.kernels or name == "kernels.json"


def test_no_file_of_a_run_is_waited_for(run):
    """A reader of a FIFO waits for a writer for ever."""
    for file in [path for path in run.iterdir() if path.is_file() and path.name != "config.json"]:
        file.unlink()
        os.mkfifo(file)
    facts = run_facts(run)
    for name in ("metrics.jsonl", "kernels.json", "first_batch.npz", "run_history.jsonl"):
        assert any(name in problem for problem in facts.problems)


def test_a_config_that_is_nested_without_end_is_named(run):
    (run / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(CheckpointError, match="nested deeper than 128 levels"):
        ax.load_run(run)
    (run / "config.json").write_text('{"a":' * 120 + "1" + "}" * 120)
    with pytest.raises(ConfigError, match="nested deeper than 100 levels"):
        ax.load_run(run)


def test_facts_have_the_batch_the_data_and_what_was_changed(run):
    facts, trainer = run_facts(run), ax.load_run(run).trainer
    first = next(trainer.train_batches())
    assert facts.batch["tokens"] == first["tokens"][:8].tolist()
    assert facts.batch["weights"] == first["loss_weights"][:8].tolist()
    assert facts.batch["texts"][97] == "a"
    assert facts.starts[-1]["data"] == str(trainer.data.summary())
    assert facts.starts[-1]["edits"] == []


def test_evaluations_are_read_by_step(run):
    metrics = {"accuracy": {"value": 0.5, "standard_error": 0.1}}
    for step in (10, 2):
        folder = run / "evaluation" / str(step)
        folder.mkdir(parents=True)
        kept = {"task": "arc", "num_samples": 9, "metrics": metrics, "seconds": 1.0}
        (folder / "arc.json").write_text(json.dumps(kept))
        (folder / "model.json").write_text("{}")
    assert run_facts(run).evaluations == [
        {"step": step, "task": "arc", "num_samples": 9, "metrics": metrics} for step in (2, 10)
    ]


def test_shares_of_a_mixture_are_those_of_its_weights():
    sources = {name: TextFiles.Config(folder=name) for name in ("a", "b")}
    changes = (NewWeights(from_step=5, weights={"b": 1.0}),)
    mixture = Mixture.Config(sources=sources, weights={"a": 3.0, "b": 1.0}, changes=changes)
    cfg = ax.update_config(ax.experiment("tiny"), {"data.source": mixture})
    assert mixture_shares(cfg) == [
        {"step": 0, "over_steps": 0, "shares": {"a": 0.75, "b": 0.25}},
        {"step": 5, "over_steps": 0, "shares": {"b": 1.0}},
    ]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        run_facts(tmp_path)
