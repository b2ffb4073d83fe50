"""Rollouts: what a batch is, and that a run which resumes samples the same bits."""

import json
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve as evolved

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.data import Policy
from axcore.errors import ConfigError, DataError
from axcore.inference import EngineConfig
from axcore.inference.sampler import allowed_tokens
from axcore.layers import whole_rows
from axcore.module import functional
from axcore.rollouts import PromptFiles, RolloutSamples
from axcore.rollouts.experiments import grpo_reverse
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.runs.text_samples import read_samples
from axcore.testing.tiny import trainer_on
from axcore.trainer import StepsDone


def small(**changes):
    """Returns `grpo` with so few and short completions that a step takes no time."""
    return update_config(
        grpo_reverse(),
        {
            "model.dim": 16,
            "**.hidden_dim": 16,
            "data.batch_size": 8,
            "data.group_size": 4,
            "data.engine": EngineConfig(
                max_num_seqs=8,
                batch_size_buckets=(8,),
                max_num_batched_tokens=16,
                num_decode_steps=4,
                sampler_kinds=("plain",),
            ),
            "data.validation_prompts": 4,
            "max_steps": 4,
            "logging.every_steps": 1,
            "eval_every_steps": 2,
            "checkpoint": Checkpointer.Config(every_steps=2),
            **changes,
        },
    )


def stop_at(step):
    def observer(event):
        if isinstance(event, StepsDone) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return observer


def rollout(group, sample, reward, tokens=(7, 8, 9)):
    return Rollout(
        prompt=(4, 5),
        tokens=tokens,
        log_probs=tuple(-0.5 * t for t in tokens),
        is_ended=True,
        rewards={"exact": reward},
        reward=reward,
        group=group,
        sample=sample,
        weight_version=0,
    )


def test_a_row_is_prompt_and_completion_and_only_what_was_sampled_counts():
    batch = batch_of([rollout(0, 0, 1.0), None], 6, 0, ("exact",))
    assert batch["tokens"].tolist() == [[4, 5, 7, 8, 0, 0], [0] * 6]
    assert batch["targets"].tolist() == [[5, 7, 8, 9, 0, 0], [0] * 6]
    assert batch["loss_weights"].tolist() == [[0, 1, 1, 1, 0, 0], [0] * 6]
    assert batch["sampler_log_probs"][0].tolist() == [0, -3.5, -4, -4.5, 0, 0]
    assert batch["row_weights"].tolist() == [1, 0]


def test_groups_are_compared_within_themselves_and_without_failed_rewards():
    rewards = (1.0, 0.0, float("nan"), 0.5), (2.0, 2.0, 2.0, 2.0)
    rows = [rollout(g, s, r) for g, group in enumerate(rewards) for s, r in enumerate(group)]
    batch = batch_of(rows, 6, 0, ("exact",))
    assert batch["row_weights"].tolist() == [1, 1, 0, 1, 1, 1, 1, 1]
    np.testing.assert_allclose(batch["group_mean"], [0.5, 0.5, 0, 0.5, 2, 2, 2, 2])
    np.testing.assert_allclose(batch["group_std"], [0.5, 0.5, 0, 0.5, 0, 0, 0, 0])
    assert batch["group_size"].tolist() == [3, 3, 0, 3, 4, 4, 4, 4]
    assert batch["failed.exact"].tolist() == [0, 0, 1, 0, 0, 0, 0, 0]


SETTINGS = {
    "one batch a rollout": {},
    "two batches, trained on twice": {
        "data.batches_per_rollout": 2,
        "data.epochs_per_rollout": 2,
    },
    "sampled ahead": {"data.max_lag": 2},
    "groups that differ": {"data.max_sampling_rounds": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_that_resumes_ends_with_the_bits_of_one_that_did_not(tmp_path, setting, step):
    trainer = trainer_on(small(**SETTINGS[setting]), 1)
    whole = trainer.run(tmp_path / "whole")
    trainer.run(tmp_path / "parts", [stop_at(step)], returns_when_stopped=True)
    resumed = trainer.run(tmp_path / "parts")
    assert (resumed.step, whole.validation) == (4, resumed.validation)
    jax.tree.map(np.testing.assert_array_equal, whole.state.model, resumed.state.model)


def mass_of_text(data, model, state, batch, temperature):
    """Returns the probability of the tokens that a sampler may draw."""
    info = whole_rows(*(jnp.asarray(batch[name]) for name in ("tokens", "token_mask")))
    logits, _ = functional(model, state, jnp.asarray(batch["tokens"]), info, method="logits")
    allowed = allowed_tokens(logits.shape[-1], data.tokenizer)
    bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: logits.shape[-1]]
    return jnp.sum(jax.nn.softmax(logits / temperature), where=bits > 0, axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_sampler_and_the_trainer_agree_to_rounding(temperature):
    data = small(**{"data.sampling.temperature": temperature}).data.build()
    model = small().model.build()
    policy = Policy(model, 0, model.init(0))
    found = data.begin_rollout(policy, [0, 1])()
    batch = data.batch(found)
    tokens, targets, mask = (
        jnp.asarray(batch[name]) for name in ("tokens", "targets", "token_mask")
    )
    (log_probs, _), _ = functional(
        model,
        policy.state,
        tokens,
        targets,
        whole_rows(tokens, mask),
        temperature,
        method="log_probs_and_entropies",
    )
    if temperature != 1:
        log_probs = log_probs - jnp.log(mass_of_text(data, model, policy.state, batch, temperature))
    gap = np.abs(log_probs - batch["sampler_log_probs"])[batch["loss_weights"] > 0]
    assert gap.max() < 1e-5


@pytest.mark.parametrize("reward", [0.25, float("nan")])
def test_a_rollout_survives_being_written(reward):
    recorded = {
        "old_log_probs": np.array([-1.5, -2.25, 0.0, -np.inf], np.float32),
        "routes": np.arange(16, dtype=np.uint8).reshape(4, 2, 2),
    }
    wanted = evolved(rollout(3, 1, reward), recorded=recorded)
    found = Rollout.from_json(json.loads(json.dumps(wanted.to_json(), allow_nan=False)))
    assert repr(found) == repr(wanted)  # nan differs from itself


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"data.batch_size": 9}, "groups of 4 do not divide"),
        ({"data.max_new_tokens": 17}, "max_new_tokens is 17, and a row"),
    ],
)
def test_what_does_not_fit_is_named(changes, error):
    with pytest.raises(ConfigError, match=error):
        small(**changes).data.build()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "has no prompt"),
        ('{"prompt": 3}\n', "has the fields prompt"),
        ('{"question": "2+2"}\n', "expected an object with a text `prompt`"),
        ("[1]\n", "is list"),
        ("{\n", "is not JSON"),
    ],
)
def test_a_file_without_prompts_is_named_with_its_line(tmp_path, text, error):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=error):
        list(PromptFiles.Config(path=str(path)).build().documents())


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path, capsys):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "ab=", "answer": "ba"}\n{"prompt": "' + "a" * 50 + '"}\n')
    cfg = evolve(small().data, prompts=PromptFiles.Config(path=str(path)), validation_fraction=0.0)
    assert "1 prompts" in cfg.build().summary()
    assert "1 prompts of" in capsys.readouterr().err


def test_the_best_and_the_worst_completion_are_kept_to_read(tmp_path):
    trainer = SimpleNamespace(data=small().data.build())
    guard = RolloutSamples.Config(every_steps=2).build()
    guard.on_start(trainer, tmp_path)
    ends = trainer.data.tokenizer.end_ids[:1]
    texts = {text: tuple(trainer.data.tokenizer.encode(text).tolist()) for text in ("ab", "c")}
    rows = [rollout(0, 0, 0.0, texts["ab"]), rollout(0, 1, 1.0, (*texts["c"], *ends)), None]
    for step in (1, 2):
        guard.on_batch(step, batch_of(rows, 8, 0, ("exact",)))
    best, worst = read_samples(tmp_path)
    assert (best["step"], best["text"], best["is_ended"]) == (2, "c", True)
    assert (worst["text"], worst["is_ended"]) == ("ab", False)
    assert "reward 1" in best["prompt"]
