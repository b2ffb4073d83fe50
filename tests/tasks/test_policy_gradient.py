"""Policy gradients: each is its formula in numpy, and only what the policy wrote counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from rounding import assert_same_to_rounding

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.interop import HuggingFace
from axcore.layers import whole_rows
from axcore.learner import Learner, WarmupCosine
from axcore.models import llama2
from axcore.module import DTypes, functional
from axcore.rollouts.experiments import grpo_reverse
from axcore.rollouts.rollout import Rollout, batch_of
from axcore.tasks import (
    DAPO,
    GRPO,
    GSPO,
    RLOO,
    Advantage,
    Clip,
    DrGRPO,
    FrozenModel,
    KLPenalty,
    OnPolicyDistill,
    PolicyGradient,
    SamplerCorrection,
)
from axcore.tasks.policy_losses import clipped_losses, kl_estimates
from axcore.testing import trainer_on
from axcore.trainer.callbacks.metrics import described
from axcore.trainer.step import TrainStep

MODEL = update_config(llama2("toy"), {"**.num_layers": 1})
LENGTH, ROWS = 12, 8
SIZES = (3, 5, 1, 7, 4, 4, 2, 6)
REWARDS = (1.0, 0.0, 0.25, 1.0, -2.0, 3.0, float("nan"), 0.5)
KL = KLPenalty(coefficient=0.2)
TASKS = {
    "grpo": GRPO.Config(clip=Clip(low=0.02, high=0.05), kl=KL),
    "dr_grpo": DrGRPO.Config(max_tokens=9, kl=evolve(KL, form="k2")),
    "dapo": DAPO.Config(kl=evolve(KL, form="k1", is_weighted_by_ratio=False)),
    "gspo": GSPO.Config(clip=Clip(low=0.01, high=0.02, level="sequence")),
    "rloo": RLOO.Config(sampler=SamplerCorrection(max_ratio=1.1, level="product")),
    "batch": PolicyGradient.Config(
        advantage=Advantage(scale="batch"), sampler=SamplerCorrection(max_ratio=1.1, above="drop")
    ),
}


def rollout_batch(rows=ROWS, length=LENGTH):
    """Returns two groups of four completions, one of which has no reward, and rows of padding."""
    draw = np.random.default_rng(0)
    known = [
        Rollout(
            prompt=(70, 71, 72)[: 2 + row // 4],
            tokens=tuple(draw.integers(9, 250, size).tolist()),
            log_probs=tuple((-5.5 + draw.normal(0, 0.3, size)).tolist()),
            is_ended=True,
            rewards={"exact": reward},
            reward=reward,
            group=row // 4,
            sample=row % 4,
            weight_version=0,
        )
        for row, (size, reward) in enumerate(zip(SIZES, REWARDS, strict=True))
    ]
    return jax.tree.map(
        jnp.asarray, batch_of([*known, *[None] * (rows - len(known))], length, 0, ("exact",))
    )


def moved(state, spread, seed):
    draw = np.random.default_rng(seed)
    move = lambda leaf: leaf * jnp.asarray(draw.uniform(1 - spread, 1 + spread, leaf.shape))  # noqa: E731
    return jax.tree.map(lambda leaf: move(leaf).astype(leaf.dtype), state)


@pytest.fixture(scope="module")
def states():
    """The parameters now, those that sampled, and those before training."""
    now = jax.tree.map(jnp.asarray, numpy_state(MODEL.build().param_specs()))
    return now, moved(now, 0.05, 1), moved(now, 0.3, 2)


@jax.jit
def log_probs(state, batch):
    """Returns the log-probabilities of targets from the full logits."""
    info = whole_rows(batch["tokens"], batch["token_mask"])
    logits, _ = functional(MODEL.build(), state, batch["tokens"], info, method="logits")
    every = jax.nn.log_softmax(logits, axis=-1)
    return jnp.take_along_axis(every, batch["targets"][..., None], axis=-1)[..., 0]


def formula(cfg, batch, policy, old, reference):
    """The loss in numpy, completion by completion; the groups' statistics are computed again."""
    rewards, groups = np.array(REWARDS), np.repeat([0, 1], 4)
    real = np.flatnonzero(np.isfinite(rewards))
    losses, counts = [], []
    for row in real:
        counted = np.asarray(batch["loss_weights"][row]) > 0
        group = rewards[real[groups[real] == groups[row]]]
        base = group.mean()
        if cfg.advantage.baseline == "leave_one_out":
            base = (group.sum() - rewards[row]) / (len(group) - 1)
        scales = {"group": group.std(ddof=1), "batch": rewards[real].std(ddof=1)}
        scale = scales[cfg.advantage.scale] + 1e-4 if cfg.advantage.scale in scales else 1.0
        advantage = (rewards[row] - base) / scale
        log_ratio = (policy - old)[row][counted]
        if cfg.clip.level != "token":
            sums = {"sequence": np.mean, "product": np.sum}[cfg.clip.level]
            log_ratio = np.full_like(log_ratio, sums(log_ratio))
        ratio = np.exp(log_ratio)
        bounded = np.clip(ratio, 1 - cfg.clip.low, 1 + cfg.clip.high)
        each = -np.minimum(ratio * advantage, bounded * advantage)
        gap = (old[row] - np.asarray(batch["sampler_log_probs"][row]))[counted]
        gap = np.full_like(gap, gap.sum()) if cfg.sampler.level == "product" else gap
        most, weight = cfg.sampler.max_ratio, np.exp(gap)
        each = each * np.where(weight > most, most if cfg.sampler.above == "cap" else 0, weight)
        r = (policy - reference)[row][counted]
        kl = {"k1": r, "k2": r**2 / 2, "k3": np.exp(-r) - 1 + r}[cfg.kl.form]
        each = each + cfg.kl.coefficient * kl * (ratio if cfg.kl.is_weighted_by_ratio else 1)
        losses.append(each.sum())
        counts.append(counted.sum())
    if cfg.mean_over == "token":
        return np.sum(losses) / np.sum(counts)
    lengths = counts if cfg.mean_over == "sequence" else cfg.max_tokens
    return np.mean(np.array(losses) / lengths)


def slopes(loss, at):
    """Returns the gradient of a numpy function by central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = 1e-5
        found[place] = (loss(at + step) - loss(at - step)) / 2e-5
    return found


def total_of(cfg, model=MODEL):
    """Returns a function of parameters, batch and those before training: the loss and gradient."""
    task = cfg.build(model=model)

    def loss(state, batch, reference):
        kept = {"reference": reference} if cfg.kl.coefficient else {}
        return functional(task, {**state, **kept}, batch)[1].total_loss()

    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("name", TASKS)
def test_loss_and_gradient_are_those_of_the_formula(name, states):
    cfg, (now, before, reference) = TASKS[name], states
    batch = rollout_batch()
    old = log_probs(before, batch)
    found, gradient = total_of(cfg)(now, {**batch, "old_log_probs": old}, reference)
    policy, pull = jax.vjp(lambda state: log_probs(state, batch), now)
    fixed = (np.asarray(one, np.float64) for one in (old, log_probs(reference, batch)))
    fixed = tuple(fixed)
    at = np.asarray(policy, np.float64)
    loss = lambda policy: formula(cfg, batch, policy, *fixed)  # noqa: E731
    np.testing.assert_allclose(found, loss(at), rtol=5e-5, atol=1e-6)
    (wanted,) = pull(jnp.asarray(slopes(loss, at), jnp.float32))
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-5 * float(jnp.abs(theirs).max()) + 1e-7)


@pytest.mark.quick_one_in(2)
@pytest.mark.parametrize("level", ["token", "product"])
def test_the_first_gradient_is_the_plain_policy_gradient(level, states):
    """Of `-A log p`, summed over a completion where it is one action; the loss is `-A`."""
    batch = rollout_batch()
    free = SamplerCorrection(max_ratio=None)
    cfg = PolicyGradient.Config(clip=Clip(level=level), sampler=free, mean_over="token")
    advantage = (batch["rewards"] - batch["group_mean"]) / (batch["group_std"] + 1e-4)
    weights = batch["loss_weights"] * batch["row_weights"][:, None]
    lengths = weights.sum(axis=1) if level == "product" else jnp.ones(ROWS)

    def plain(state):
        each = -(advantage * lengths)[:, None] * log_probs(state, batch)
        return jnp.sum(each * weights) / weights.sum()

    found, gradient = total_of(cfg)(states[0], batch, None)
    np.testing.assert_allclose(
        found, -jnp.sum(advantage[:, None] * weights) / weights.sum(), rtol=1e-5
    )
    assert_same_to_rounding(gradient, jax.jit(jax.grad(plain))(states[0]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "is_clipped"),
    [(1.5, 1, True), (1.5, -1, False), (0.5, 1, False), (0.5, -1, True), (1.0, 1, False)],
)
def test_the_clip_decides_only_where_the_policy_already_went_further(ratio, advantage, is_clipped):
    loss = lambda log_ratio: clipped_losses(log_ratio, jnp.full((1, 1), float(advantage)), Clip())  # noqa: E731
    at = jnp.full((1, 1), np.log(ratio), jnp.float32)
    slope = jax.grad(lambda x: loss(x)[0].sum())(at)
    assert (float(loss(at)[1][0, 0]) == 1, float(slope[0, 0]) == 0) == (is_clipped, is_clipped)


def test_the_mean_of_k1_and_k3_is_the_divergence_and_none_is_below_0_but_k1():
    draw = np.random.default_rng(0)
    p, q = draw.dirichlet(np.ones(6), 2)
    r = jnp.asarray(np.log(p / q), jnp.float32)[None]
    k1, k2, k3 = (kl_estimates(r, form)[0] for form in ("k1", "k2", "k3"))
    divergence = np.sum(p * np.log(p / q))
    np.testing.assert_allclose([p @ k1, p @ k3], divergence, rtol=1e-5)
    assert k1.min() < 0 <= min(k2.min(), k3.min())


def test_a_row_without_a_reward_is_as_one_of_padding(states):
    batch, cfg = rollout_batch(), TASKS["grpo"]
    other = {
        **batch,
        "tokens": batch["tokens"].at[6].set(5),
        "targets": batch["targets"].at[6].set(5),
    }
    run = total_of(cfg)
    found = [run(states[0], one, states[2]) for one in (batch, other, rollout_batch(10))]
    assert_same_to_rounding(found[1], found[0])
    assert_same_to_rounding(found[2], found[0])


def test_entropy_is_a_mean_over_tokens_whatever_the_loss_is(states):
    batch = rollout_batch()
    info = whole_rows(batch["tokens"], batch["token_mask"])
    logits, _ = functional(MODEL.build(), states[0], batch["tokens"], info, method="logits")
    entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1)
    weights = batch["loss_weights"] * batch["row_weights"][:, None]
    wanted = float(jnp.sum(entropy * weights) / weights.sum())
    tasks = [DrGRPO.Config(entropy_bonus=bonus) for bonus in (0.0, 0.3)]
    losses = [total_of(one)(states[0], batch, None)[0] for one in tasks]
    assert float(losses[0] - losses[1]) == pytest.approx(0.3 * wanted, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("mean_over", ["sequence", "token", "constant"])
def test_micro_batches_are_one_batch(mean_over):
    learner = Learner.Config(schedule=WarmupCosine.Config(warmup_steps=1))
    task = GRPO.Config(mean_over=mean_over, entropy_bonus=0.1, kl=KL)
    after = []
    for count in (1, 4):
        step = TrainStep(
            task.build(model=MODEL), learner.build(total_steps=9), num_micro_batches=count
        )
        state = jax.jit(step.init)()
        for _ in range(2):
            state, metrics = jax.jit(step)(state, rollout_batch())
        after.append((step.own_part(state.model), metrics.losses))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *after)


@pytest.mark.slow
def test_rows_on_four_devices_are_those_on_one(states):
    batch, cfg = rollout_batch(), TASKS["grpo"]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    rows = jax.NamedSharding(mesh, jax.P("data"))
    split = jax.tree.map(lambda leaf: jax.device_put(leaf, rows), batch)
    state = jax.device_put(states[0], jax.NamedSharding(mesh, jax.P()))
    kept = jax.device_put(states[2], jax.NamedSharding(mesh, jax.P()))
    found = total_of(cfg)(state, split, kept)
    assert_same_to_rounding(jax.device_get(found), total_of(cfg)(states[0], batch, states[2]))


def test_in_bfloat16_the_first_ratio_is_1_and_log_probabilities_are_within_a_twentieth(states):
    batch = rollout_batch()
    coarse = update_config(MODEL, {"dtypes": DTypes(compute="bfloat16")})
    exact = log_probs(states[0], batch)
    batch |= {"sampler_log_probs": exact}
    task = GRPO.Config().build(model=coarse)
    _, out = jax.jit(lambda state: functional(task, state, batch))(states[0])
    gap = out.losses["sampler_gap"]
    assert 0 < float(gap.sum / gap.weight) < 0.05
    assert float(out.losses["clip_fraction"].sum) == 0
    free = evolve(GRPO.Config(), sampler=SamplerCorrection(max_ratio=None))
    loss, _ = total_of(free, coarse)(states[0], batch, None)
    np.testing.assert_allclose(loss, total_of(free)(states[0], batch, None)[0], rtol=1e-5)


def test_the_penalty_of_rloo_comes_off_rewards_before_they_are_compared():
    batch = jax.tree.map(np.asarray, rollout_batch())
    draw = np.random.default_rng(3)
    for name in ("old_log_probs", "reference_log_probs"):
        batch[name] = draw.normal(-5, 0.5, batch["tokens"].shape).astype(np.float32)
    mask = batch["loss_weights"] * batch["row_weights"][:, None]
    gap = (batch["old_log_probs"] - batch["reference_log_probs"]) * mask
    task = RLOO.Config(kl=KLPenalty(coefficient=0.1, form="k1")).build(model=MODEL)
    found = task.finish_batch(batch)["advantages"]
    rewards = batch["rewards"] - 0.1 * gap.sum(axis=1)
    for row in np.flatnonzero(batch["row_weights"]):
        others = (batch["group"] == batch["group"][row]) & (batch["row_weights"] > 0)
        others[row] = False
        np.testing.assert_allclose(found[row], rewards[row] - rewards[others].mean(), atol=1e-5)
    assert "advantages" not in RLOO.Config().build(model=MODEL).finish_batch(batch)


def test_units_are_named():
    units = GRPO.Config().build(model=MODEL).metric_units()
    metrics = {"loss": 0.5, "loss/kl": 0.1, "entropy": 1.0, "clip_fraction": 0.25}
    assert described(metrics, units) == [
        "loss 0.5000 a completion",
        "loss/kl 0.1000 nats",
        "entropy 1.0000 nats",
        "clip_fraction 0.2500 of tokens",
    ]


@pytest.mark.parametrize(
    ("changes", "error", "hint"),
    [
        ({"model.decoder.dropout.rate": 0.1}, "a dropout of 0.1", "decoder.dropout.rate=0"),
        ({"data.rewards": {}}, "there is no reward", "exact_match"),
        ({"task.temperature": 0.7}, "temperature is 1.0, and task.temperature 0.7", "=1.0"),
        ({"model.vocab_size": 9}, "vocab_size is 9, but", "--set model.vocab_size="),
    ],
)
def test_what_would_change_numbers_in_silence_is_refused(changes, error, hint):
    cfg = update_config(grpo_reverse(), {"mesh": {"fsdp": 1}, **changes})
    with pytest.raises(ConfigError, match=error) as caught:
        trainer_on(cfg, 1)
    assert hint in caught.value.hint


TEACHER = update_config(MODEL, {"dim": 48, "**.hidden_dim": 40})


def taught(**changes):
    source = HuggingFace.Config(path="none")
    return OnPolicyDistill.Config(
        teacher=FrozenModel.Config(model=TEACHER, init_from=source), **changes
    )


def test_on_policy_distillation_follows_the_teacher_at_each_token(states):
    """The loss is the divergence at what was sampled, and the gradient that of `-A log p`."""
    batch, free = rollout_batch(), SamplerCorrection(max_ratio=None)
    teacher = jax.tree.map(jnp.asarray, numpy_state(TEACHER.build().param_specs()))
    task = taught(sampler=free).build(model=MODEL)
    weights = batch["loss_weights"] * batch["row_weights"][:, None]
    info = whole_rows(batch["tokens"], batch["token_mask"])
    said, _ = functional(TEACHER.build(), teacher, batch["tokens"], info, method="logits")
    every = jax.nn.log_softmax(said, axis=-1)
    wanted = jnp.take_along_axis(every, batch["targets"][..., None], axis=-1)[..., 0]
    advantage = wanted - log_probs(states[0], batch)

    def plain(state):
        return -jnp.sum(advantage * log_probs(state, batch) * weights) / weights.sum()

    def loss(state):
        _, out = functional(task, {**state, "teacher": teacher}, batch)
        return out.total_loss(), out.losses["reverse_kl"]

    (found, measured), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(states[0])
    np.testing.assert_allclose(found, measured.sum / measured.weight, rtol=1e-5)
    np.testing.assert_allclose(
        found, -jnp.sum(advantage * weights) / weights.sum(), rtol=1e-4, atol=1e-6
    )
    assert_same_to_rounding(gradient, jax.jit(jax.grad(plain))(states[0]))
