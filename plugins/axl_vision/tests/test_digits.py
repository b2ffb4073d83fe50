"""The small experiments learn what they are for, and resume to the same numbers."""

import signal

import jax
import numpy as np
import pytest
from axl_vision.experiments import digits, digits_clip

from axcore.config import update_config
from axcore.testing.tiny import trainer_on
from axcore.trainer import StepsDone

EXPERIMENTS = {"digits": digits, "digits-clip": digits_clip}


def stop_at_three(event):
    if isinstance(event, StepsDone) and event.step == 3:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_that_is_stopped_resumes_to_the_same_bits(name, tmp_path):
    changes = {"max_steps": 6, "eval_every_steps": 6, "data.validation_batches": 1}
    trainer = trainer_on(update_config(EXPERIMENTS[name](), changes), 1)
    whole = trainer.run(tmp_path / "whole")
    stopped = trainer.run(tmp_path / "run", [stop_at_three], returns_when_stopped=True)
    assert stopped.step == 3
    resumed = trainer.run(tmp_path / "run")
    assert resumed.validation == whole.validation
    assert jax.tree.all(jax.tree.map(np.array_equal, whole.state, resumed.state))


@pytest.mark.slow
def test_digits_are_read(tmp_path):
    result = digits().build().run(tmp_path / "run")
    assert result.validation["accuracy"] > 0.95


@pytest.mark.slow
def test_captions_of_digits_are_found(tmp_path):
    result = digits_clip().build().run(tmp_path / "run")
    assert result.validation["retrieval"] > 0.9
