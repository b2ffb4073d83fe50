"""Guards change batches and states, send a run back to a checkpoint, or end it early."""

import copy
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axcore as ax
from axcore.config import config, evolve, update_config
from axcore.errors import ConfigError, TrainingError
from axcore.learner import ConstantSchedule, Learner
from axcore.resilience.run_summary import summarise_run
from axcore.tasks import Regression
from axcore.testing import trainer_on
from axcore.trainer import (
    EarlyStopping,
    Guard,
    LoggingConfig,
    PhaseStarted,
    RollbackRequest,
    RolledBack,
    RunFinished,
    StepsDone,
    Trainer,
)


class GoesBack(Guard):
    """Goes back the first times that a step is logged; keeps the batches that it sees."""

    @config
    class Config(Guard.Config):
        at: int = 7
        steps: int = 2
        skips_data: bool = True
        times: int = 1

    seen: list = []

    def on_start(self, trainer, directory):
        self.left = self.config.times
        self.seen.clear()

    def on_batch(self, step, batch):
        self.seen.append((step, batch["tokens"].tobytes()))
        return batch

    def on_metrics(self, step, metrics):
        if step == self.config.at and self.left:
            self.left -= 1
            raise RollbackRequest(f"loss {metrics['loss']:.1f} is odd", **self.request())

    def request(self):
        return {"steps": self.config.steps, "skips_data": self.config.skips_data}


class Keeps(list):
    """An observer that keeps every event."""

    sees_phases = True

    def __call__(self, event):
        self.append(event)


class Zeroes(Guard):
    """Sets every token of a batch to zero, and the bias to one after a step."""

    def on_batch(self, step, batch):
        return {**batch, "tokens": np.zeros_like(batch["tokens"])}

    def on_state(self, step, state):
        bias = jax.numpy.ones_like(state.model["bias"])
        return state._replace(model={**state.model, "bias": bias})


@pytest.fixture(scope="module")
def guarded(toy_trainer):
    """Makes the toy's trainer with guards; all share its compiled step."""

    def with_guards(*guards, **changes):
        trainer = copy.copy(toy_trainer)
        changed = {"guards": guards, **changes}
        trainer.config = update_config(toy_trainer.config, changed)
        return trainer

    return with_guards


@pytest.fixture(scope="module")
def tokens(toy_trainer):
    batches = toy_trainer.data.train()
    return [next(batches)["tokens"].tobytes() for _ in range(20)]


def train_steps(directory):
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if line["split"] == "train"]


@pytest.fixture(scope="module")
def rolled_back(guarded, tmp_path_factory):
    """A run that went from step 7 back to 4, its events, and the batches that it took."""
    directory, events = tmp_path_factory.mktemp("back") / "run", Keeps()
    result = guarded(GoesBack.Config()).run(directory, [events])
    return directory, result, events, list(GoesBack.seen)


@pytest.mark.slow
def test_a_rollback_goes_to_the_newest_checkpoint_that_is_old_enough(rolled_back):
    directory, result, events, _ = rolled_back
    (back,) = [event for event in events if isinstance(event, RolledBack)]
    assert (back.from_step, back.step, result.step) == (7, 4, 12)
    assert back.reason.endswith("is odd")
    logged = [event.step for event in events if isinstance(event, StepsDone)]
    assert logged == [*range(1, 8), *range(5, 13)]
    assert train_steps(directory) == list(range(1, 13))


@pytest.mark.slow
def test_batches_of_the_steps_undone_are_skipped(rolled_back, tokens):
    *_, seen = rolled_back
    steps = [*range(1, 8), *range(5, 13)]
    assert seen == list(zip(steps, tokens[: len(steps)], strict=True))


@pytest.mark.slow
def test_batches_come_again_where_data_is_not_at_fault(guarded, whole_run, same_bits, tmp_path):
    result = guarded(GoesBack.Config(skips_data=False)).run(tmp_path / "run")
    assert same_bits(result.state, whole_run[1].state)


@pytest.mark.slow
def test_a_run_stopped_after_a_rollback_goes_on_with_the_same_batches(
    guarded, rolled_back, same_bits, tmp_path
):
    def stop_at_rollback(event):
        if isinstance(event, RolledBack):
            signal.raise_signal(signal.SIGINT)

    stopping = {"observers": [stop_at_rollback], "returns_when_stopped": True}
    assert guarded(GoesBack.Config()).run(tmp_path / "run", **stopping).step == 4
    result = guarded().run(tmp_path / "run")
    assert same_bits(result.state, rolled_back[1].state)


@pytest.mark.slow
def test_checkpoints_of_the_steps_undone_are_quarantined(guarded, tmp_path):
    directory, events = tmp_path / "run", []
    guarded(GoesBack.Config(at=9, steps=3)).run(directory, [events.append])
    (back,) = [event for event in events if isinstance(event, RolledBack)]
    assert (back.from_step, back.step) == (9, 4)
    names = sorted(path.name for path in (directory / "checkpoints").glob("step*"))
    assert names == ["step_00000004", "step_00000008", "step_00000008.quarantined", "step_00000012"]


@pytest.mark.slow
def test_a_run_without_a_checkpoint_goes_back_to_its_start(guarded, tmp_path):
    events = []
    guarded(GoesBack.Config(at=3)).run(tmp_path / "run", [events.append])
    assert [event.step for event in events if isinstance(event, RolledBack)] == [0]


@pytest.mark.slow
def test_rollbacks_have_a_budget(guarded, tmp_path):
    with pytest.raises(TrainingError, match=r"is odd; the run went back 2 times in the last 1000"):
        guarded(GoesBack.Config(times=3), **{"rollback.max_rollbacks": 2}).run(tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run/rollbacks.jsonl").read_text().splitlines())
    assert [(line["from_step"], line["step"]) for line in lines] == [(7, 4), (7, 4)]


@pytest.mark.slow
def test_a_guard_changes_batches_and_states(guarded, tmp_path):
    state = guarded(Zeroes.Config(), max_steps=1).run(tmp_path / "run").state
    assert np.array_equal(state.model["bias"], np.ones(264, np.float32))


def test_phases_change_when_time_is_spent_on_something_else(rolled_back):
    labels = [event.label for event in rolled_back[2] if isinstance(event, PhaseStarted)]
    assert labels[:5] == ["start", "compile", "data_wait", "step", "data_wait"]
    assert labels[-1] == "idle"
    assert (labels.count("restore"), labels.count("evaluation"), labels.count("save")) == (1, 3, 4)
    assert labels.count("step") == labels.count("data_wait") == 15


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
        logging=LoggingConfig(every_steps=1),
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
