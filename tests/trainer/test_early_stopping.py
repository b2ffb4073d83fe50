"""A run whose validation metric no longer improves ends, complete, and at the same step always."""

import json
import signal

import jax.numpy as jnp
import numpy as np
import pytest

import axcore as ax
from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.learner import ConstantSchedule, Learner
from axcore.resilience.run_summary import summarise_run
from axcore.tasks import Regression
from axcore.testing import trainer_on
from axcore.trainer import EarlyStopping, RunFinished, StepsDone, Trainer


class Affine(ax.Module):
    def setup(self, cfg):
        self.weight = ax.Param((2,), axes=(None,))

    def forward(self, x):
        return jnp.tensordot(x, self.weight, 1)


# The loss falls all the time, so that what is to rise never improves on the first evaluation.
NEVER = EarlyStopping.Config(metric="loss", goal="max", patience=3)


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """Makes trainers that evaluate every second step, and would stop at step 8 of 20."""
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    data = ax.ArrayData.Config(train={"x": x, "y": x @ np.float32([1, -1])}, batch_size=6)
    cfg = Trainer.Config(
        model=Affine.Config(),
        task=Regression.Config(),
        data=data,
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=0.01)),
        max_steps=20,
        eval_every_steps=2,
        log_every_steps=1,
        guards=(NEVER,),
    )
    return lambda **changes: trainer_on(evolve(cfg, **changes), 1)


@pytest.mark.parametrize(
    ("values", "settings", "stops_at"),
    [
        ([3, 2, 1, 1, 1], {"patience": 2}, 5),
        ([3, 2, 2.5, 1.9, 2, 2], {"patience": 2}, 6),
        ([3, 2.95, 2.9, 2.85], {"patience": 2, "min_improvement": 0.1}, 3),
        ([3, 2.95, 2.85, 2.8, 2.8], {"patience": 2, "min_improvement": 0.1}, 5),
        ([0.5, 0.7, 0.6, 0.7], {"patience": 2, "goal": "max"}, 4),
        ([1, np.nan, np.nan], {"patience": 2}, 3),
        ([np.nan, 1, 0.5, 0.25], {"patience": 1}, 1),
        ([4, 3, 2, 1], {"patience": 1}, None),
    ],
)
def test_it_counts_evaluations_since_the_best(trainer, tmp_path, values, settings, stops_at):
    guard = EarlyStopping.Config(**{"metric": "a", **settings}).build()
    guard.on_start(trainer(), tmp_path)
    stopped = []
    for step, value in enumerate(values, 1):
        assert not guard.reason_to_stop(step - 1) or stopped
        guard.on_validation(step, {"a": value})
        stopped += [step] if guard.reason_to_stop(step) else []
    assert stopped[:1] == ([] if stops_at is None else [stops_at])


def test_the_run_ends_complete_and_says_why(trainer, tmp_path):
    events = []
    result = trainer().run(tmp_path / "run", [events.append], quiet=True)
    assert (result.step, result.is_complete, int(result.state.step)) == (8, True, 8)
    assert result.stop_reason.endswith("at step 2, and not better in the 3 evaluations since")
    assert events[-1] == RunFinished(step=8, is_complete=True, stop_reason=result.stop_reason)
    kept = json.loads((tmp_path / "run" / "stopped_early.json").read_text())
    assert kept == {"step": 8, "reason": result.stop_reason}
    assert summarise_run(tmp_path / "run").state == "done"


@pytest.mark.slow
def test_a_run_that_stopped_goes_on_with_more_patience_alone(trainer, tmp_path):
    result = trainer().run(tmp_path / "run", quiet=True)
    again = trainer().run(tmp_path / "run", quiet=True)
    assert (again.step, again.stop_reason) == (8, result.stop_reason)
    assert again.validation == pytest.approx(result.validation)
    patient = trainer(guards=(evolve(NEVER, patience=9),)).run(tmp_path / "run", quiet=True)
    assert (patient.step, patient.stop_reason) == (20, "")
    assert not (tmp_path / "run" / "stopped_early.json").exists()


@pytest.mark.slow
def test_an_interrupted_run_stops_where_it_would_have(trainer, tmp_path):
    def interrupt(event):
        if isinstance(event, StepsDone) and event.step == 5:
            signal.raise_signal(signal.SIGTERM)

    first = trainer().run(tmp_path / "run", [interrupt], quiet=True, returns_when_stopped=True)
    assert (first.step, first.is_complete) == (5, False)
    assert trainer().run(tmp_path / "run", quiet=True).step == 8


def test_it_needs_validation_data_that_has_the_metric(trainer, tmp_path):
    guard, made = EarlyStopping.Config(metric="bleu").build(), trainer()
    guard.on_start(made, tmp_path)
    with pytest.raises(
        ConfigError, match="the validation metrics have no 'bleu'; they are loss, a"
    ):
        guard.on_validation(2, {"loss": 1.0, "accuracy": 0.5})
    none = trainer(data=evolve(made.config.data, validation_fraction=0.0))
    with pytest.raises(ConfigError, match="early stopping needs validation data"):
        guard.on_start(none, tmp_path)
