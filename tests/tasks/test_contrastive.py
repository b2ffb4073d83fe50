"""Contrastive losses against their formulas, and rows of padding that are nobody's negatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axcore as ax
from axcore.config import update_config
from axcore.data import ArrayData
from axcore.errors import ConfigError
from axcore.learner import Learner
from axcore.module import ArraySpec, BatchSpec, functional
from axcore.tasks import Contrastive, Pairs
from axcore.tasks.retrieval import recalls
from axcore.testing import trainer_on
from axcore.trainer import KernelsConfig

SCALE = 3.0


class Given(ax.Module):
    """Two arrays as they are, of length one."""

    def setup(self, cfg):
        self.scale = ax.Param((), axes=(), init=SCALE)

    def forward(self, a, b):
        one, other = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
        return Pairs(one, other, self.scale, jnp.asarray(-1.0))


RANDOM = np.random.default_rng(0)
A, B = RANDOM.normal(size=(2, 6, 4)).astype(np.float32)
B[3] = B[1]


def outputs_of(loss, weights, a=A, b=B):
    task = Contrastive.Config(inputs=("a", "b"), second="b", loss=loss).build(model=Given.Config())
    batch = {"a": a, "b": b, "row_weights": np.asarray(weights, np.float32)}
    batch = jax.tree.map(jnp.asarray, batch)
    _, outputs = functional(task, task.init(0), batch)
    return {name: float(one.sum / one.weight) for name, one in outputs.losses.items()}


def logits_of(a, b):
    a, b = (x.astype(np.float64) / np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
    return SCALE * a @ b.T - 1


def test_softmax_is_the_mean_cross_entropy_of_both_directions():
    logits = logits_of(A, B)
    both = (np.log(np.exp(logits).sum(axis)) - np.diag(logits) for axis in (0, 1))
    wanted = np.mean(list(both))
    assert outputs_of("softmax", np.ones(6))["contrastive"] == pytest.approx(wanted, rel=1e-5)


def test_sigmoid_is_the_sum_over_pairs():
    sign = 2 * np.eye(6) - 1
    wanted = np.log1p(np.exp(-sign * logits_of(A, B))).sum() / 6
    assert outputs_of("sigmoid", np.ones(6))["contrastive"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_rows_of_padding_change_nothing(loss):
    short = outputs_of(loss, np.ones(4), A[:4], B[:4])
    filled = outputs_of(loss, [1, 1, 1, 1, 0, 0])
    assert filled == pytest.approx(short, rel=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_batch_of_padding_has_a_finite_gradient(loss):
    task = Contrastive.Config(inputs=("a", "b"), second="b", loss=loss).build(model=Given.Config())

    def total(a):
        batch = {"a": a, "b": jnp.asarray(B), "row_weights": jnp.zeros(6)}
        return functional(task, task.init(0), batch)[1].losses["contrastive"].sum

    np.testing.assert_array_equal(jax.grad(total)(jnp.asarray(A)), 0)


def test_retrieval_counts_equal_rows_as_right():
    found = outputs_of("softmax", np.ones(6), B, B)
    assert found["retrieval"] == 1
    assert outputs_of("softmax", np.ones(6), B, np.roll(B, 1, axis=0))["retrieval"] < 1


def test_a_batch_of_other_arrays_is_refused():
    task = Contrastive.Config().build(model=Given.Config())
    spec = ArraySpec(shape=(2,), axes=("batch",), dtype="float32")
    with pytest.raises(ConfigError, match="reads image, text, text_mask, and a batch has a"):
        task.check_batch(BatchSpec(arrays={"a": spec}, unit="row", num_units=2))


def naive_recalls(a, b, keys, most):
    """Recall in float64, pair by pair, of queries and candidates as the docstring has them."""
    distinct = [keys.index(key) for key in sorted(set(keys))]
    forward = np.mean(
        [
            sum(a[i] @ b[j] >= a[i] @ b[keys.index(keys[i])] for j in distinct) <= most
            for i in range(len(a))
        ]
    )
    best = [max(a[j] @ b[i] for j in range(len(a)) if keys[j] == keys[i]) for i in range(len(a))]
    backward = np.mean(
        [
            1 + sum(a[j] @ b[i] >= best[i] for j in range(len(a)) if keys[j] != keys[i]) <= most
            for i in range(len(a))
        ]
    )
    return float(forward), float(backward)


def test_recall_is_that_of_a_count_of_pairs():
    random = np.random.default_rng(1)
    keys = random.integers(0, 20, 40).tolist()
    texts = random.normal(size=(20, 8))
    a, b = random.normal(size=(40, 8)) + 0.5 * texts[keys], texts[keys]
    found = recalls(*(x.astype(np.float32) for x in (a, b)), np.array(keys)[:, None], np.ones(40))
    for most in (1, 5, 10):
        wanted = naive_recalls(a, b, keys, most)
        assert (found["forward"][most], found["backward"][most]) == pytest.approx(wanted)
        assert 0 < wanted[0] <= 1


def test_vectors_that_are_all_the_same_or_no_numbers_are_found_nowhere():
    for value in (1.0, np.nan):
        same = np.full((30, 4), value, np.float32)
        found = recalls(same, same, np.arange(30), np.ones(30))
        assert {*found["forward"].values(), *found["backward"].values()} == {0.0}


def test_padding_and_blocks_change_no_recall(monkeypatch):
    random = np.random.default_rng(2)
    a, b = random.normal(size=(2, 30, 6)).astype(np.float32)
    whole = recalls(a, b, np.arange(30), np.ones(30))
    filled = [np.concatenate([x, x[:5]]) for x in (a, b)]
    monkeypatch.setattr("axcore.tasks.retrieval._BLOCK", 7)
    keys, weights = np.arange(35), np.array([1.0] * 30 + [0.0] * 5)
    assert recalls(*filled, keys, weights) == whole


def test_a_rank_is_left_out_where_all_candidates_would_count():
    x = np.eye(5, dtype=np.float32)
    assert recalls(x, x, np.arange(5), np.ones(5)) == {"forward": {1: 1.0}, "backward": {1: 1.0}}


def test_recall_is_over_all_held_out_rows_however_they_are_split():
    random = np.random.default_rng(3)
    b = random.normal(size=(37, 4)).astype(np.float32)
    a = b + random.normal(size=b.shape).astype(np.float32)
    cfg = ax.Trainer.Config(
        model=Given.Config(),
        task=Contrastive.Config(inputs=("a", "b"), second="b"),
        data=ArrayData.Config(train={"a": a, "b": b}, validation={"a": a, "b": b}, batch_size=16),
        learner=Learner.Config(),
        max_steps=200,
        mesh={"data": -1},
        kernels=KernelsConfig(allow=("portable",)),
    )
    one, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    for num_devices in (1, 8):
        trainer = trainer_on(cfg, num_devices)
        found = trainer.evaluate(trainer.step.evaluated_model(trainer.compiler.jitted_init()))
        for most in (1, 5, 10):
            wanted = naive_recalls(one, other, list(range(37)), most)
            names = (f"a_to_b/recall_at_{most}", f"b_to_a/recall_at_{most}")
            assert [found[name] for name in names] == pytest.approx(wanted)
    none = update_config(cfg, {"task.recall_rows": 0})
    trainer = trainer_on(none, 1)
    assert "retrieval" in (found := trainer.evaluate(trainer.compiler.jitted_init().model))
    assert not [name for name in found if "recall" in name]
