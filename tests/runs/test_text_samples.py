"""Samples over time: sampled at each evaluation, kept with their steps, changing nothing else."""

import json

import jax
import numpy as np
import pytest

import axcore as ax
from axcore.errors import ConfigError
from axcore.hardware import Hardware
from axcore.runs import GenerateSamples, run_facts
from axcore.runs.text_samples import SAMPLES_NAME, read_samples
from axcore.testing import small_experiment, trainer_on

CPU = Hardware.parse("cpu-1")


@pytest.mark.slow
def test_each_evaluation_has_a_sample_and_training_is_the_same(tmp_path):
    plain = ax.update_config(
        small_experiment(tmp_path / "texts"),
        {"mesh": {"fsdp": 1}, "max_steps": 4, "eval_every_steps": 2, "prompt": "a"},
    )
    drawn = GenerateSamples(prompts=("a", "b"), max_tokens=5).apply(plain, CPU)
    states = [
        trainer_on(cfg, 1).run(tmp_path / name, quiet=True).state
        for name, cfg in (("plain", plain), ("drawn", drawn))
    ]
    jax.tree.map(np.testing.assert_array_equal, *states)
    samples = read_samples(tmp_path / "drawn")
    assert [(one["step"], one["prompt"]) for one in samples] == [
        (2, "a"), (2, "b"), (4, "a"), (4, "b")
    ]  # fmt: skip
    opened = ax.load_run(tmp_path / "drawn")
    for sample in samples[2:]:
        assert sample["text"] == opened.generate(sample["prompt"], max_tokens=5).text
    assert run_facts(tmp_path / "drawn").samples == samples
    assert run_facts(tmp_path / "plain").samples == []


def test_a_run_that_went_back_leaves_no_samples_of_steps_that_were_undone(tmp_path):
    lines = [
        {"step": step, "prompt": prompt, "text": text}
        for step, prompt, text in [
            (10, "a", "1"), (10, "b", "2"), (20, "a", "3"), (30, "a", "4"), (20, "a", "5")
        ]
    ]  # fmt: skip
    (tmp_path / SAMPLES_NAME).write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert [one["text"] for one in read_samples(tmp_path)] == ["1", "2", "5"]


def test_lines_that_are_no_samples_are_named(tmp_path):
    path = tmp_path / SAMPLES_NAME
    path.write_text('{"step": 1, "prompt": "", "text": "x"}\n{"step": 2}\n{"step": 3, "te')
    with pytest.warns(UserWarning, match="line") as found:
        assert [one["step"] for one in read_samples(tmp_path)] == [1]
    messages = [str(one.message) for one in found]
    assert any("is damaged at line 3" in one for one in messages)
    assert f"1 lines of {path} are not samples" in messages


def test_a_model_without_text_is_refused(tmp_path, monkeypatch):
    cfg = ax.update_config(small_experiment(tmp_path / "texts"), {"mesh": {"fsdp": 1}})
    trainer = trainer_on(GenerateSamples().apply(cfg, CPU), 1)
    (guard,) = (one.build() for one in trainer.config.guards)
    monkeypatch.delattr(type(trainer.model), "logits")
    with pytest.raises(ConfigError, match="no text can be sampled: CausalLM has no entry"):
        guard.on_start(trainer, tmp_path)
