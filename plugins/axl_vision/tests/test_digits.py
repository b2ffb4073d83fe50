"""The small experiments learn what they are for, and resume to the same numbers."""

import signal

import jax
import numpy as np
import pytest
from axl_vision.experiments import digits, digits_chat, digits_clip

from axcore.config import update_config
from axcore.testing.tiny import trainer_on
from axcore.trainer import StepsDone

EXPERIMENTS = {"digits": digits, "digits-clip": digits_clip, "digits-chat": digits_chat}


def stop_at_three(event):
    if isinstance(event, StepsDone) and event.step == 3:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_that_is_stopped_resumes_to_the_same_bits(name, tmp_path):
    changes = {"max_steps": 6, "eval_every_steps": 6, "logging.every_steps": 1}
    trainer = trainer_on(update_config(EXPERIMENTS[name](), changes), 1)
    whole = trainer.run(tmp_path / "whole")
    stopped = trainer.run(tmp_path / "run", [stop_at_three], returns_when_stopped=True)
    assert stopped.step == 3
    resumed = trainer.run(tmp_path / "run")
    assert resumed.validation == whole.validation
    assert jax.tree.all(jax.tree.map(np.array_equal, whole.state, resumed.state))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "metric"), [("digits", "accuracy"), ("digits-clip", "retrieval")])
def test_an_experiment_learns(name, metric, tmp_path):
    changes = {"max_steps": 200, "eval_every_steps": 200, "checkpoint.every_steps": 200}
    result = trainer_on(update_config(EXPERIMENTS[name](), changes), 1).run(tmp_path / "run")
    # Full runs get to 0.97 and 0.94; one in ten would be right by chance.
    assert result.validation[metric] > 0.6
