"""A damaged state takes no good checkpoint's place, and the run goes back to a good one."""

import copy
import json
import signal

import jax
import numpy as np
import pytest

from axcore.config import config, evolve, update_config
from axcore.errors import CheckpointError, TrainingError
from axcore.trainer import Guard, RolledBack, RunStarted, SpikeRollback, StepsDone


class PoisonsMoment(Guard):
    """Makes a second moment negative after a step, once, as a flipped bit may: its root is nan.

    Its size is as any, so that the state is saved.
    """

    @config
    class Config(Guard.Config):
        at: int = 6
        times: int = 1

    def on_start(self, trainer, directory):
        self.left = self.config.times

    def on_state(self, step, state):
        if step != self.config.at or not self.left:
            return state
        self.left -= 1
        return state._replace(opt_state=jax.tree.map_with_path(self._poisoned, state.opt_state))

    def _poisoned(self, path, leaf):
        is_struck = jax.tree_util.keystr(path, simple=True, separator=".").endswith("nu.bias")
        return leaf.at[3].set(-1.0) if is_struck else leaf


class SpoilsBatches(Guard):
    """Gives the steps 21 and 22 of the first history tokens that follow no rule."""

    def on_start(self, trainer, directory):
        self.spoiled = [21, 22]

    def on_batch(self, step, batch):
        if step not in self.spoiled:
            return batch
        self.spoiled.remove(step)
        random = np.random.default_rng(step).integers(3, 264, batch["targets"].shape, np.int32)
        return {**batch, "targets": random}


@pytest.fixture(scope="module")
def poisoned(toy_trainer):
    """Makes the toy's trainer with guards, which gives up after two skipped steps in a row."""

    def with_guards(*guards, **changes):
        trainer = copy.copy(toy_trainer)
        limits = {"rollback.max_skipped_in_a_row": 2, "guards": guards, **changes}
        trainer.config = update_config(toy_trainer.config, limits)
        return trainer

    return with_guards


def steps_in(directory):
    return sorted(path.name for path in (directory / "checkpoints").glob("step*"))


@pytest.mark.slow
@pytest.mark.parametrize("at", [6, 8])  # between two checkpoints, and into the one of step 8
def test_the_run_goes_back_to_the_checkpoint_before_the_damage(poisoned, tmp_path, at):
    events = []
    result = poisoned(PoisonsMoment.Config(at=at)).run(tmp_path, [events.append])
    (back,) = [event for event in events if isinstance(event, RolledBack)]
    assert (back.from_step, back.step) == (at + 3, 4)
    assert "3 steps in a row had a loss, gradient or update that is not finite" in back.reason
    assert np.isfinite(result.state.model["bias"]).all()
    assert (result.step, int(result.state.skipped)) == (12, 0)
    aside = ["step_00000008.quarantined"] if at == 8 else []
    good = ["step_00000004", "step_00000008", *aside, "step_00000012"]
    assert steps_in(tmp_path) == good


@pytest.mark.slow
def test_without_a_budget_the_run_stops_and_its_hints_can_be_followed(poisoned, tmp_path):
    guard = PoisonsMoment.Config(at=8)
    with pytest.raises(TrainingError, match="3 steps in a row") as error:
        poisoned(guard, **{"rollback.max_rollbacks": 0}).run(tmp_path)
    assert "axcore train --from-step 4" in error.value.hint
    assert steps_in(tmp_path) == ["step_00000004", "step_00000008"]
    result = poisoned(**{"rollback.max_rollbacks": 0}).run(tmp_path, from_step=4)
    assert (result.step, int(result.state.skipped)) == (12, 0)
    assert "step_00000008.quarantined" in steps_in(tmp_path)


def stop_at(step):
    def observer(event):
        if isinstance(event, StepsDone) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    return observer


@pytest.mark.slow
def test_a_learning_rate_may_change_on_resume_and_the_change_is_kept_and_shown(
    toy_config, toy_trainer, one_device, tmp_path, capsys
):
    toy_trainer.run(tmp_path, [stop_at(2)], returns_when_stopped=True)
    lower = evolve(toy_config.learner, schedule=evolve(toy_config.learner.schedule, peak=0.01))
    events = []
    one_device(evolve(toy_config, learner=lower)).run(
        tmp_path, [events.append, stop_at(3)], returns_when_stopped=True
    )
    change = "learner.schedule.peak: 0.05 -> 0.01"
    (started,) = [event for event in events if isinstance(event, RunStarted)]
    assert started.config_changes == (change,)
    assert f"changed: {change}\n" in capsys.readouterr().err
    history = (tmp_path / "run_history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["config_changes"] for line in history] == [[], [change]]


@pytest.mark.slow
def test_going_back_to_a_step_without_a_checkpoint_names_those_there_are(toy_trainer, tmp_path):
    toy_trainer.run(tmp_path, [stop_at(2)], returns_when_stopped=True)
    with pytest.raises(CheckpointError, match="no checkpoint of step 1; there are: 2"):
        toy_trainer.run(tmp_path, from_step=1)


@pytest.mark.slow
def test_a_spike_rolls_back_and_the_batches_that_caused_it_are_skipped(poisoned, tmp_path):
    guard = SpikeRollback.Config(window=8, steps=4, sigmas=4.0)
    events, changes = [], {"max_steps": 28}
    trainer = poisoned(SpoilsBatches.Config(), guard, **changes)
    result = trainer.run(tmp_path, [events.append])
    backs = [event for event in events if isinstance(event, RolledBack)]
    assert [(back.from_step, back.step, back.skips_data) for back in backs] == [
        (21, 16, True),
        (22, 16, True),
    ]
    assert "standard deviations" in backs[0].reason
    assert result.step == 28
