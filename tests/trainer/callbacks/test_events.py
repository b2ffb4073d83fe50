"""Observers see every event in order, cannot change one, and never end a run."""

import attrs
import pytest

from axcore.models import flops_per_token
from axcore.trainer import CheckpointSaved, Evaluated, RunFinished, RunStarted, StepsDone


@pytest.fixture(scope="module")
def seen(toy_trainer, tmp_path_factory):
    """The events of a whole run, beside an observer that raises at the second step."""
    events, calls = [], []

    def failing(event):
        calls.append(event)
        if isinstance(event, StepsDone) and event.step == 2:
            raise RuntimeError("the display fell off the wall")

    with pytest.warns(UserWarning, match="is switched off") as caught:
        result = toy_trainer.run(tmp_path_factory.mktemp("run") / "run", [failing, events.append])
    return events, calls, [str(warning.message) for warning in caught], result


@pytest.mark.slow
def test_events_come_in_the_order_of_the_run(seen):
    events, *_ = seen
    saved = [event for event in events if isinstance(event, CheckpointSaved)]
    others = [event for event in events if event not in saved]
    assert [type(event).__name__ for event in others[:7]] == [
        "RunStarted",
        *["StepsDone"] * 4,
        "Evaluated",
        "StepsDone",
    ]
    of = lambda kind: [event.step for event in events if isinstance(event, kind)]  # noqa: E731
    assert of(RunStarted) == [0]
    assert of(StepsDone) == list(range(1, 13))
    assert of(Evaluated) == of(CheckpointSaved) == [4, 8, 12]
    assert events[-1] == RunFinished(step=12, is_complete=True)
    assert others[-2].metrics == seen[3].validation


def test_an_observer_that_raises_is_switched_off_with_a_warning_and_the_run_goes_on(seen):
    _, calls, warnings, result = seen
    assert result.is_complete
    assert calls[-1].step == 2
    (warning,) = warnings
    assert "raised RuntimeError: the display fell off the wall at StepsDone" in warning
    assert "switched off for the rest of the run" in warning


def test_an_event_cannot_be_changed(seen):
    for event in seen[0]:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            event.step = 99
    with pytest.raises(TypeError):
        seen[0][1].metrics["loss"] = 0.0


def test_the_start_tells_what_is_trained_on_what(seen, toy_trainer):
    started = seen[0][0]
    assert (started.hardware, started.mesh, started.max_steps) == ("cpu-1", "1 device", 12)
    assert started.num_params == 264 * 8 + 264
    assert started.data == str(toy_trainer.data.summary())
    assert started.peak_flops is None


def test_flops_of_a_token_follow_the_formula_by_hand(small_trainer):
    dim, heads, kv_heads, head_dim, hidden, vocab, seq_len = 32, 4, 2, 8, 64, 264, 64
    attention = dim * head_dim * (heads + 2 * kv_heads) + heads * head_dim * dim
    layer = attention + 3 * dim * hidden + 2 * dim
    num_matmul = 2 * layer + dim + dim * vocab
    pairs = 2 * 6 * seq_len * heads * head_dim
    assert flops_per_token(small_trainer.model, seq_len) == 6 * num_matmul + pairs


@pytest.mark.slow
def test_steps_are_logged_together_where_asked(rare_trainer, tmp_path):
    events = []
    rare_trainer.run(tmp_path, [events.append])
    done = [event for event in events if isinstance(event, StepsDone)]
    assert [event.step for event in done] == [5, 10, 12]
    assert [event.step for event in events if isinstance(event, Evaluated)] == [2, 4, 6, 8, 10, 12]
