"""Classification and regression: equal to the formula, by weight, for any module."""

import jax.numpy as jnp
import numpy as np
import pytest

import axcore as ax
from axcore.errors import ConfigError
from axcore.learner import ConstantSchedule, Learner
from axcore.module import functional
from axcore.tasks import Classification, Regression
from axcore.testing import trainer_on
from axcore.trainer import Trainer


class Affine(ax.Module):
    @ax.config
    class Config(ax.Module.Config):
        shape: tuple[int, ...] = (2, 3)

    def setup(self, cfg):
        self.weight = ax.Param(cfg.shape, axes=(None,) * len(cfg.shape))

    def forward(self, x):
        return jnp.tensordot(x, self.weight, 1)


X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
LABELS = np.array([0, 1, 2, 2, 1, 0])
WEIGHTS = np.array([1, 2, 0.5, 1, 0, 0], np.float32)


def metrics_of(task, target, shape=(2, 3)):
    """The loss and the measures of a batch, and what the model returned."""
    module = task.build(model=Affine.Config(shape=shape))
    state = module.init(0)
    batch = {"x": jnp.asarray(X), "y": jnp.asarray(target), "row_weights": jnp.asarray(WEIGHTS)}
    _, outputs = functional(module, state, batch)
    found = {name: float(one.sum / one.weight) for name, one in outputs.losses.items()}
    assert float(outputs.total_loss()) == found[next(iter(found))]
    return found, np.asarray(X @ state["weight"], np.float64)


@pytest.mark.parametrize("smooth", [0.0, 0.3])
def test_classification_is_the_weighted_cross_entropy(smooth):
    found, logits = metrics_of(Classification.Config(label_smoothing=smooth), LABELS)
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    wanted = (1 - smooth) * np.eye(3)[LABELS] + smooth / 3
    nll = -(wanted * log_probs).sum(1)
    assert found["cross_entropy"] == pytest.approx((nll * WEIGHTS).sum() / WEIGHTS.sum(), rel=1e-5)
    right = logits.argmax(1) == LABELS
    assert found["accuracy"] == pytest.approx((right * WEIGHTS).sum() / WEIGHTS.sum())


def test_regression_is_the_weighted_squared_error_of_all_values():
    target = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    found, predicted = metrics_of(Regression.Config(), target)
    error = predicted - target
    for name, values in (("squared_error", error**2), ("mean_absolute_error", np.abs(error))):
        wanted = (values.mean(1) * WEIGHTS).sum() / WEIGHTS.sum()
        assert found[name] == pytest.approx(wanted, rel=1e-5)


def trainer(task, arrays):
    data = ax.ArrayData.Config(train=arrays, batch_size=4, validation_fraction=0.3)
    learner = Learner.Config(schedule=ConstantSchedule.Config(peak=0.03))
    cfg = Trainer.Config(
        model=Affine.Config(), task=task, data=data, learner=learner, max_steps=150
    )
    return trainer_on(cfg, 1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path))


REFUSED = {
    "too few logits": (Classification, {"x": X, "y": LABELS + 1}, "labels are up to 3, so"),
    "no integers": (Classification, {"x": X, "y": X[:, 0]}, "y has float32, some below 0 or no"),
    "below 0": (Classification, {"x": X, "y": LABELS - 1}, "expected labels from 0 on"),
    "a label for each logit": (Classification, {"x": X, "y": np.eye(3, dtype=int)[LABELS]}, "need"),
    "[B, 3] and [B]": (
        Regression,
        {"x": X, "y": X[:, 0]},
        r"an array \[4, 3\], and y has .* \[4\]",
    ),
    "unread": (Regression, {"x": X, "y": X, "z": X}, "reads x, y, and a batch has x, y, z"),
    "missing": (Regression, {"x": X}, "reads x, y, and a batch has x, row_weights"),
}


@pytest.mark.parametrize(("task", "arrays", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_compared_is_refused_before_training(task, arrays, message):
    with pytest.raises(ConfigError, match=message) as error:
        trainer(task.Config(), arrays)
    assert error.value.hint


@pytest.mark.slow
def test_a_regression_finds_the_weights_that_made_the_data_and_reports_all_held_out_rows(tmp_path):
    draw = np.random.default_rng(2)
    x, weight = draw.normal(size=(40, 2)).astype(np.float32), np.float32([[1, -1, 0], [0, 0.5, 1]])
    task = Regression.Config(inputs=("a",), target="b")
    made = trainer(task, {"a": x, "b": x @ weight})
    result = made.run(tmp_path / "run", quiet=True)
    assert np.allclose(result.state.model["weight"], weight, atol=0.05)
    held_out = list(made.data.validation())
    rows = np.concatenate([batch["a"][batch["row_weights"] == 1] for batch in held_out])
    error = rows @ np.asarray(result.state.model["weight"]) - rows @ weight
    assert result.validation["loss"] == pytest.approx(np.mean(error**2), rel=1e-4)
    assert result.validation["mean_absolute_error"] == pytest.approx(np.abs(error).mean(), rel=1e-4)
