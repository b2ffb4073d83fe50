"""The small experiments learn what they are for, and resume to the same numbers."""

import io
import signal

import jax
import numpy as np
import pytest
from axl_vision.experiments import digits, digits_chat, digits_clip
from PIL import Image

from axcore.config import update_config
from axcore.evaluation import shown_rows
from axcore.runs import load_run
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "asks"), [("digits", False), ("digits-chat", True)])
def test_a_page_shows_held_out_pictures_with_answers(name, asks, tmp_path):
    changes = {"max_steps": 2, "eval_every_steps": 2, "checkpoint.every_steps": 2}
    trainer_on(update_config(EXPERIMENTS[name](), changes), 1).run(tmp_path / "run")
    run = load_run(tmp_path / "run")
    rows = shown_rows(run, max_rows=5)
    wanted = list(run.trainer.data.held_out(max_rows=5))
    assert len(rows) == len(wanted) == 5
    for row, record in zip(rows, wanted, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(row.media[0].content)))
        np.testing.assert_array_equal(pixels, np.squeeze(run.trainer.data.row(record)["image"]))
        assert bool(row.asked) is asks
        assert "<image>" not in row.asked
    if not asks:
        assert [row.wanted for row in rows] == [record["folder"] for record in wanted]


def test_rows_that_are_shown_are_from_all_over():
    data = digits().data.build()
    all_of, some = (list(data.held_out(max_rows=count)) for count in (None, 10))
    assert [one["folder"] for one in some] == [
        all_of[place * len(all_of) // 10]["folder"] for place in range(10)
    ]
    assert len({one["folder"] for one in some}) > 5
    assert len(list(data.held_out(max_rows=10_000))) == len(all_of)
