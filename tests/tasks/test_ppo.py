"""PPO: advantages are those of a plain loop, and nothing depends on padding, parts or a restart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from rounding import assert_same_to_rounding
from small_rollouts import small as small_rollouts
from small_rollouts import stop_at

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.learner import Learner, WarmupCosine
from axcore.models import llama2
from axcore.module import functional
from axcore.rewards import OverlongPenalty
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.tasks import GAE, PPO, Advantage, KLPenalty, SamplerCorrection, ValueLoss
from axcore.tasks.ppo import generalized_advantages, token_rewards, whitened
from axcore.testing import trainer_on
from axcore.trainer.step import TrainStep

MODEL = update_config(llama2("toy"), {"**.num_layers": 1})
KL = KLPenalty(coefficient=0.3, form="k1")
SIZES = (3, 5, 1, 7)
REWARDS = (1.0, float("nan"), -0.5, 2.0)


def rollouts():
    draw = np.random.default_rng(0)
    return [
        Rollout(
            prompt=(70, 71, 72)[: 2 + row % 2],
            tokens=tuple(draw.integers(9, 250, size).tolist()),
            log_probs=tuple((-5.5 + draw.normal(0, 0.3, size)).tolist()),
            is_ended=True,
            rewards={},
            reward=reward,
            group=row // 2,
            sample=row % 2,
            weight_version=0,
        )
        for row, (size, reward) in enumerate(zip(SIZES, REWARDS, strict=True))
    ]


def finished_batch(task, state, *, length=12, num_rows=4):
    """A batch with what was recorded by a state, and the advantages."""
    rows = [*rollouts(), *[None] * (num_rows - len(SIZES))]
    batch = batch_of(rows, length, 0, ())
    record = jax.jit(lambda state, batch: functional(task, state, batch, method="record")[0])
    recorded = record(state, batch)
    return task.finish_batch({**batch, **jax.tree.map(np.asarray, recorded)})


def state_of(task):
    """Random parameters, those of the head and of the reference among them."""
    own = jax.tree.map(jnp.asarray, numpy_state(MODEL.build().param_specs()))
    kept = task.kept_state(own, task.param_specs())
    head = jax.random.normal(jax.random.key(1), kept["value_head"]["weight"].shape) / 8
    reference = jax.tree.map(lambda leaf: leaf * 1.1, kept.get("reference", {}))
    return {**own, **kept, "value_head": {"weight": head}, "reference": reference}


def task_of(**changes):
    return evolve(PPO.Config(kl=KL), **changes).build(model=MODEL)


def plain_advantages(rewards, values, gae):
    """The sum of discounted errors of one completion, each written out."""
    after = [*values[1:], 0.0]
    errors = [r + gae.gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    factor = gae.gamma * gae.lam
    return [
        sum(factor**k * error for k, error in enumerate(errors[t:])) for t in range(len(errors))
    ]


@pytest.mark.parametrize("gae", [GAE(), GAE(gamma=0.9, lam=0.5), GAE(lam=0.0), GAE(lam=1.0)])
def test_advantages_are_those_of_a_plain_loop_over_each_completion(gae):
    draw = np.random.default_rng(0)
    rewards, values = draw.normal(size=(2, 3, 9))
    mask = (np.arange(9) >= 2) & (np.arange(9) < np.array([[9], [4], [3]]))
    found, returns = generalized_advantages(rewards, values, mask.astype(np.float32), gae)
    for row, counts in enumerate(mask):
        wanted = plain_advantages(rewards[row][counts], values[row][counts], gae)
        np.testing.assert_allclose(found[row][counts], wanted)
        np.testing.assert_allclose(returns[row][counts], wanted + values[row][counts])
    assert not found[~mask].any()
    assert not returns[~mask].any()


def test_what_the_policy_did_not_write_takes_no_time():
    """A row with a turn of somebody else in it has the advantages of one without."""
    draw = np.random.default_rng(0)
    rewards, values = draw.normal(size=(2, 1, 6))
    mask, gae = np.array([[1, 1, 0, 0, 1, 1.0]]), GAE(gamma=0.8)
    found, _ = generalized_advantages(rewards, values, mask, gae)
    short = mask[0] > 0
    wanted, _ = generalized_advantages(rewards[:, short], values[:, short], np.ones((1, 4)), gae)
    np.testing.assert_allclose(found[:, short], wanted)


@pytest.mark.parametrize("form", ["k1", "k3"])
def test_the_last_token_has_the_reward_and_each_the_penalty(form):
    draw = np.random.default_rng(0)
    old, reference = draw.normal(size=(2, 2, 5)).astype(np.float32)
    mask = np.array([[0, 1, 1, 1, 0], [0, 0, 0, 0, 0.0]])
    batch = {
        "rewards": np.array([2.0, 9.0]),
        "old_log_probs": old,
        "reference_log_probs": reference,
    }
    found = token_rewards(batch, mask, KLPenalty(coefficient=0.5, form=form))
    gap = (old - reference)[0, 1:4]
    penalty = 0.5 * (gap if form == "k1" else np.exp(-gap) - 1 + gap)
    np.testing.assert_allclose(found[0], [0, *(-penalty + [0, 0, 2]), 0], rtol=1e-5)
    assert not found[1].any()


def test_whitened_advantages_have_a_mean_of_0_and_a_deviation_of_1_over_what_counts():
    draw = np.random.default_rng(0)
    values, mask = draw.normal(3, 5, (4, 6)), draw.random((4, 6)) < 0.5
    found = whitened(values, mask.astype(np.float32))
    np.testing.assert_allclose([found[mask].mean(), found[mask].std(ddof=1)], [0, 1], atol=1e-6)
    assert not found[~mask].any()


def losses(task, state, batch):
    def loss(state):
        _, out = functional(task, state, jax.tree.map(jnp.asarray, batch))
        return out.total_loss(), out.losses

    (_, found), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(state)
    return found, gradient


@pytest.mark.slow
def test_loss_and_gradient_do_not_depend_on_padding():
    """Neither on longer rows, nor on rows of padding; a row without a reward is as one."""
    task = task_of()
    state = state_of(task)
    small = finished_batch(task, state)
    other = {**small, "tokens": small["tokens"].copy()}
    other["tokens"][1] = 5
    found = [
        losses(task, state, one)
        for one in (small, finished_batch(task, state, length=17, num_rows=6), other)
    ]
    assert_same_to_rounding(found[1], found[0])
    assert_same_to_rounding(found[2], found[0])


def test_by_the_weights_that_sampled_the_loss_is_the_mean_advantage_and_error():
    free = SamplerCorrection(max_ratio=None)
    task = task_of(gae=GAE(is_whitened=False), sampler=free)
    state = state_of(task)
    batch = finished_batch(task, state)
    found, _ = losses(task, state, batch)
    counts = batch["loss_weights"] * batch["row_weights"][:, None]
    mean = lambda values: np.sum(values * counts) / counts.sum()  # noqa: E731
    policy, value = (found[name].sum / found[name].weight for name in ("policy", "value"))
    np.testing.assert_allclose(policy, -mean(batch["advantages"]), rtol=1e-4)
    np.testing.assert_allclose(value, 0.5 * mean(batch["advantages"] ** 2), rtol=1e-4)
    assert float(found["clip_fraction"].sum) == 0


@pytest.mark.slow
@pytest.mark.parametrize("trains_trunk", [True, False])
def test_the_value_loss_reaches_the_model_only_where_it_is_to(trains_trunk):
    task = task_of(value=ValueLoss(trains_trunk=trains_trunk))
    state = state_of(task)
    batch = finished_batch(task, state)

    def value_loss(state):
        _, out = functional(task, state, jax.tree.map(jnp.asarray, batch))
        return out.losses["value"].contribution()

    gradient = jax.grad(value_loss)(state)
    largest = {
        name: max(map(float, jax.tree.leaves(jax.tree.map(jnp.max, one))))
        for name, one in jax.tree.map(jnp.abs, gradient).items()
    }
    assert largest["value_head"] > 1e-4
    assert (largest["decoder"] > 1e-4) == trains_trunk
    assert largest["reference"] == 0


@pytest.mark.slow
def test_micro_batches_are_one_batch():
    learner = Learner.Config(schedule=WarmupCosine.Config(warmup_steps=1))
    after = []
    for count in (1, 4):
        task = task_of()
        step = TrainStep(task, learner.build(total_steps=9), num_micro_batches=count)
        state = jax.jit(step.init)()
        batch = finished_batch(task, state.model)
        for _ in range(2):
            state, metrics = jax.jit(step)(state, batch)
        after.append((state.model, metrics.losses))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *after)


def small(**changes):
    """Returns a run of PPO whose steps take no time."""
    # No completion has the reward that a head of zeros expects.
    rewards = {"short": OverlongPenalty.Config(max_tokens=4, buffer_tokens=4)}
    cfg = small_rollouts(**{"data.rewards": rewards})
    return update_config(evolve(cfg, task=PPO.Config(kl=KL)), changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data.batches_per_rollout": 2, "data.epochs_per_rollout": 2},
        {"data.max_lag": 1},
    ],
    ids=["one batch", "two batches, twice", "ahead"],
)
def test_a_run_trains_the_head_and_resumes_to_the_same_bits(tmp_path, changes):
    trainer = trainer_on(small(**changes), 1)
    first = trainer.first_state().model
    assert not np.any(first["value_head"]["weight"])
    whole = trainer.run(tmp_path / "whole", quiet=True)
    trainer.run(tmp_path / "parts", [stop_at(3)], returns_when_stopped=True, quiet=True)
    resumed = trainer.run(tmp_path / "parts", quiet=True)
    assert (resumed.step, whole.validation) == (4, resumed.validation)
    jax.tree.map(np.testing.assert_array_equal, whole.state, resumed.state)
    assert np.any(whole.state.model["value_head"]["weight"])
    assert np.isfinite(whole.validation["loss/value"])


@pytest.mark.slow
def test_the_head_and_what_the_optimizer_keeps_of_it_are_split_over_the_mesh():
    first = trainer_on(small(mesh={"fsdp": 2}), 2).first_state()
    head = first.model["value_head"]["weight"]
    assert head.addressable_shards[0].data.size == head.size // 2
    moments = [leaf for leaf in jax.tree.leaves(first.opt_state) if leaf.shape == head.shape]
    assert {leaf.addressable_shards[0].data.size for leaf in moments} == {head.size // 2}


def test_a_group_advantage_that_ppo_would_not_read_is_refused():
    cfg = small(**{"mesh": {"fsdp": 1}, "task.advantage": Advantage(scale="none")})
    with pytest.raises(ConfigError, match="values of its head") as caught:
        trainer_on(cfg, 1)
    assert "task.gae" in caught.value.hint
