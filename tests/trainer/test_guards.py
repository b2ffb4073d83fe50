"""Guards change batches and states between steps, and send a run back to a checkpoint."""

import copy
import json
import signal

import jax
import numpy as np
import pytest

from axcore.config import config, evolve
from axcore.errors import TrainingError
from axcore.trainer import Guard, PhaseStarted, RollBack, RolledBack, StepsDone


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
            raise RollBack(f"loss {metrics['loss']:.1f} is odd", **self.wish())

    def wish(self):
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
        trainer.config = evolve(toy_trainer.config, guards=guards, **changes)
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
        guarded(GoesBack.Config(times=3), max_rollbacks=2).run(tmp_path / "run")
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
