"""Contrastive losses against their formulas, and rows of padding that are nobody's negatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axcore as ax
from axcore.errors import ConfigError
from axcore.module import ArraySpec, BatchSpec, functional
from axcore.tasks import Contrastive, Pairs

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
