"""Rollouts: what a batch is, and that a run which resumes samples the same bits."""

import itertools
import json
import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attrs import evolve as evolved
from small_rollouts import small, stop_at

from axcore.config import config, evolve
from axcore.data import Policy
from axcore.errors import ConfigError
from axcore.inference import Engine
from axcore.inference.sampler import allowed_tokens
from axcore.layers import whole_rows
from axcore.modifiers import LoRA
from axcore.module import ParamSpec, functional
from axcore.ops import current_policy
from axcore.plugins import Hardware
from axcore.rewards import PythonReward, Reward
from axcore.rewards.named import user_function
from axcore.rollouts import RolloutSamples
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.runs.text_samples import read_samples
from axcore.testing.tiny import trainer_on
from axcore.trainer import KernelsConfig


def is_spec(node):
    return isinstance(node, ParamSpec)


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


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"data": 2}, {"fsdp": 2}, {"model": 2}], ids=str)
def test_a_run_on_two_devices_samples_what_its_own_weights_find_likely(tmp_path, mesh):
    trainer = trainer_on(small(mesh=mesh, max_steps=2), 2)
    assert trainer.run(tmp_path / "run").step == 2
    text = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert max(one["sampler_gap"] for one in lines) < 1e-5


@pytest.mark.slow
def test_where_adapters_train_the_sampler_is_given_them_and_samples_the_same(tmp_path, monkeypatch):
    each_step = {"data.epochs_per_rollout": 1, "max_steps": 3, "eval_every_steps": 3}
    cfg = LoRA(rank=2).apply(small(**each_step), Hardware.parse("cpu-1"))
    trainer = trainer_on(cfg, 1)
    given, replace = [], Engine.replace_weights

    def noted(self, state, **values):
        leaves = jax.tree_util.tree_leaves_with_path(state)
        given.append({jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves})
        replace(self, state, **values)

    monkeypatch.setattr(Engine, "replace_weights", noted)
    in_part = trainer.run(tmp_path / "part")
    specs = jax.tree_util.tree_leaves_with_path(trainer.step.own_specs, is_leaf=is_spec)
    trained = {
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, spec in specs
        if not spec.is_frozen
    }
    # The trainer's own arrays that the engine shares are donated to each step, and shared again;
    # layers, which the engine keeps apart, are not copied again.
    assert trained < given[0] == given[1]
    shared = given[0] - trained
    assert len(shared) == 3
    assert not any("stack" in name for name in shared)
    monkeypatch.setattr(Engine, "missing_weights", lambda self, state, specs: state)
    whole = trainer.run(tmp_path / "whole")
    assert len(given[-1]) == len(specs) > len(given[0])
    jax.tree.map(np.testing.assert_array_equal, in_part.state.model, whole.state.model)


@pytest.mark.slow
def test_the_sampler_takes_the_kernels_that_its_trainer_takes(tmp_path, monkeypatch):
    seen, make = [], Engine.__init__

    def noted(self, *args, **values):
        seen.append(current_policy())
        make(self, *args, **values)

    monkeypatch.setattr(Engine, "__init__", noted)
    kernels = KernelsConfig(pins={"rope": "portable"}, allow=("portable",))
    trainer_on(evolve(small(max_steps=1), kernels=kernels), 1).run(tmp_path)
    assert [(one.pins, one.allow) for one in seen] == [({"rope": "portable"}, ("portable",))]


REWARD = """
import os, pathlib

def score(prompt, completion, fields):
    (pathlib.Path(__file__).parent / f"{os.getpid()}.pid").touch()
    return 1
"""


@pytest.mark.slow
def test_no_process_of_a_reward_outlives_a_run_that_is_stopped_or_one_that_ends(tmp_path):
    (tmp_path / "process_reward.py").write_text(REWARD)
    fn = user_function(f"{tmp_path}/process_reward.py:score")
    rewards = {"data.rewards": {"pid": PythonReward.Config(fn=fn, num_workers=2)}}
    trainer = trainer_on(small(**rewards, max_steps=2), 1)
    for observers in ([stop_at(1)], []):
        trainer.run(tmp_path / "run", observers, returns_when_stopped=True)
        pids = [int(one.stem) for one in tmp_path.glob("*.pid")]
        assert pids
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


class Moody(Reward):
    """A judge that never says the same twice."""

    @config
    class Config(Reward.Config):
        """Has no settings."""

    verdicts = itertools.count()

    def score(self, prompt, completion, fields):
        return next(self.verdicts)


@pytest.mark.slow
def test_a_judge_is_not_asked_again_for_what_was_sampled_before_a_checkpoint():
    """Its verdicts are in the saved position: of what is trained on later, and of what is ahead."""
    changes = {"batches_per_rollout": 2, "epochs_per_rollout": 2, "max_lag": 1}
    cfg = small(**{f"data.{name}": one for name, one in changes.items()})
    data = evolve(cfg.data, rewards={"judge": Moody.Config()}).build()
    model = cfg.model.build()
    policy = Policy(model, 0, model.init(0))
    batches, resumed = data.train(), data.train()
    batches.on_policy(policy)
    next(batches)
    resumed.set_state(json.loads(json.dumps(batches.get_state())))
    resumed.on_policy(policy)
    wanted, found = ([next(one) for _ in range(7)] for one in (batches, resumed))
    assert len({reward for one in wanted for reward in one["rewards"]}) == 2 * 2 * 8
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


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


def test_completions_of_the_same_prompts_are_kept_at_each_evaluation(tmp_path):
    trainer = SimpleNamespace(data=small().data.build())
    guard = RolloutSamples.Config(num_held_out=1).build()
    guard.on_start(trainer, tmp_path)
    encode = trainer.data.tokenizer.encode
    for step, (text, reward) in enumerate([("ab", 0.0), ("ba", 1.0), ("a", float("nan"))]):
        first = rollout(0, 0, reward, tuple(encode(text).tolist()))
        trainer.data.evaluated = [first, rollout(1, 0, 0.5)]
        guard.on_evaluation(step, None)
    found = read_samples(tmp_path)
    assert [(one["step"], one["text"]) for one in found] == [(0, "ab"), (1, "ba"), (2, "a")]
    assert len({one["prompt"] for one in found}) == 1
    assert [one.get("reward") for one in found] == [0.0, 1.0, None]
