"""DiLoCo: groups train on their own, and meet as its formula says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import ConfigError
from axcore.learner import EMA, SGD, AdamW, ConstantSchedule, DiLoCo, Learner
from axcore.module import Module, Param
from axcore.trainer.step import TrainStep

GROUPS, EVERY, RATE, OUTER, MOMENTUM = 3, 2, 0.1, 0.7, 0.9


class Line(Module):
    """A regression: the mean squared error of `x @ weight`."""

    def setup(self, cfg):
        self.weight = Param((4,), axes=(None,), init=1.0)

    def forward(self, batch):
        error = batch["x"] @ self.weight - batch["y"]
        self.add_loss("error", jnp.sum(error**2), jnp.float32(error.size))


def learner(**changes):
    inner = {"optimizer": SGD.Config(), "schedule": ConstantSchedule.Config(peak=RATE)}
    values = {"num_groups": GROUPS, "sync_every": EVERY, "clip_norm": None, **inner, **changes}
    return DiLoCo.Config(**values)


def batches(count, rows=6, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.normal(size=(rows, 4)).astype("f"), "y": rng.normal(size=rows).astype("f")}
        for _ in range(count)
    ]


def trained(cfg, given):
    """Returns the state after each batch."""
    step = TrainStep(Line.Config().build(), cfg.build(total_steps=99))
    states, run = [step.init()], jax.jit(step)
    for batch in given:
        states.append(run(states[-1], batch)[0])
    return states


def gradient(weight, batch):
    error = batch["x"] @ weight - batch["y"]
    return 2 * batch["x"].T @ error / len(error)


def by_hand(given, lost=()):
    """Returns the outer parameters after each batch, from the paper's formula.

    Args:
        given: Batches.
        lost: Pairs of a step and the group that is lost in it, until all meet again.
    """
    outer, momentum = np.ones(4), np.zeros(4)
    groups, gone, found = [outer] * GROUPS, set(), [outer]
    for number, batch in enumerate(given, start=1):
        gone |= {group for step, group in lost if step == number}
        for group in range(GROUPS):
            part = {name: np.split(array, GROUPS)[group] for name, array in batch.items()}
            groups[group] = groups[group] - RATE * gradient(groups[group], part)
        if number % EVERY == 0:
            there = [own for group, own in enumerate(groups) if group not in gone]
            moved = outer - np.mean(there, axis=0)
            momentum = MOMENTUM * momentum + moved
            outer = outer - OUTER * (moved + MOMENTUM * momentum)
            groups, gone = [outer] * GROUPS, set()
        found.append(outer)
    return found


@pytest.mark.parametrize("lost", [(), ((3, 1),), ((3, 0), (4, 2))])
def test_three_groups_follow_the_papers_formula_where_some_are_lost_too(lost):
    given, broken = batches(8), batches(8)
    for step, group in lost:
        broken[step - 1]["y"][2 * group] = np.nan  # each group has two rows
    states = trained(learner(), broken)
    for state, wanted in zip(states, by_hand(given, lost), strict=True):
        np.testing.assert_allclose(state.model["weight"], wanted, rtol=1e-4)
    assert int(states[-1].skipped) == 0


def test_parameters_move_only_where_groups_meet():
    states = trained(learner(), batches(4))
    moved = [
        not np.array_equal(states[i].model["weight"], states[i + 1].model["weight"])
        for i in range(4)
    ]
    assert moved == [False, True, False, True]
    ahead = states[3].opt_state.params["weight"]
    assert len({one.tobytes() for one in np.asarray(ahead)}) == GROUPS
    behind = np.asarray(states[4].opt_state.params["weight"])
    assert all(np.array_equal(one, states[4].model["weight"]) for one in behind)


def test_to_meet_at_each_step_is_plain_data_parallel_training():
    given = batches(4)
    changes = {"sync_every": 1, "outer_rate": 1.0, "outer_momentum": 0.0}
    plain = Learner.Config(
        optimizer=SGD.Config(), schedule=ConstantSchedule.Config(peak=RATE), clip_norm=None
    )
    one, other = trained(learner(**changes), given)[-1], trained(plain, given)[-1]
    np.testing.assert_allclose(one.model["weight"], other.model["weight"], rtol=1e-5)


def test_each_group_keeps_the_state_of_its_own_optimizer():
    cfg = learner(optimizer=AdamW.Config())
    moments = [
        leaf
        for leaf in jax.tree.leaves(trained(cfg, batches(4))[-1].opt_state.inner)
        if leaf.ndim > 1
    ]
    assert {leaf.shape for leaf in moments} == {(GROUPS, 4)}
    assert all(len({one.tobytes() for one in np.asarray(leaf)}) == GROUPS for leaf in moments)


def test_a_step_that_is_finite_in_no_group_changes_nothing():
    (batch,) = batches(1)
    batch["y"][:] = np.inf
    before, after = trained(learner(), [batch])
    assert int(after.skipped) == 1
    assert np.array_equal(before.opt_state.params["weight"], after.opt_state.params["weight"])


def test_gradient_norms_by_module_are_refused_however_the_learner_was_named():
    with pytest.raises(ConfigError, match="gradient norms by module"):
        TrainStep(Line.Config().build(), learner().build(total_steps=9), norms_every_steps=1)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"ema": EMA.Config(decay=0.9)}, "groups that train apart have no average"),
        ({"num_groups": 4}, "a batch of 6 rows does not divide over 4 groups"),
    ],
)
def test_what_does_not_fit_groups_is_refused(changes, what):
    with pytest.raises(ConfigError, match=what):
        trained(learner(**changes), batches(1))
