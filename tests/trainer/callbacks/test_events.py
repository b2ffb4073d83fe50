"""Events of a run, and observers that a config names: the heartbeat, and some that fail."""

import json
import os
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import attrs
import pytest

from axcore.config import update_config
from axcore.errors import ConfigError, PluginError
from axcore.models import flops_per_token
from axcore.plugins.time_limit import CALLBACK_TIMEOUT
from axcore.trainer import CheckpointSaved, Evaluated, RunFinished, RunStarted, StepsDone
from axcore.trainer.callbacks import progress
from axcore.trainer.callbacks.events import Observers, named_observers
from axcore.trainer.checks import check_libraries

PLUGIN = """
    from axcore.plugins import Ref, RunObserver, hook

    @hook.observers
    def observers():
        for name in ("faulty", "stillborn", "asleep", "ender"):
            yield RunObserver(name=name, fn=Ref(f"axl_lamp.lamp:{name}"), summary="A lamp")
"""

LAMP = """
    import time
    from axcore.trainer import StepsDone

    SEEN = []

    class Faulty:
        def __call__(self, event):
            SEEN.append(event.step)
            if isinstance(event, StepsDone) and event.step == 7:
                raise RuntimeError("the lamp burned out")

    def stillborn():
        raise ValueError("no socket")

    class Asleep:
        def __call__(self, event):
            SEEN.append(event.step)
            if event.step == 7:
                time.sleep(600)

    class Ender:
        def __call__(self, event):
            raise SystemExit(3)

    faulty, asleep, ender = Faulty, Asleep, Ender
"""


@pytest.fixture
def lamp(make_dist):
    make_dist("axl-lamp", PLUGIN, files={"lamp.py": LAMP})


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


def test_an_observer_that_hangs_is_switched_off_with_its_line_and_the_others_see_on(
    lamp, monkeypatch
):
    monkeypatch.setenv(CALLBACK_TIMEOUT, "0.3")
    seen = []
    emit = Observers([*named_observers(["asleep"]), seen.append])
    emit(RunFinished(step=6, is_complete=True))
    with pytest.warns(UserWarning, match="the observer 'asleep' of plugin 'axl-lamp'") as caught:
        emit(RunFinished(step=7, is_complete=True))
    emit(RunFinished(step=8, is_complete=True))
    text = str(caught[0].message)
    assert "failed at RunFinished of step 7: it has not finished after 0.3 s; it is at " in text
    assert re.search(r"axl_lamp/lamp.py:\d+; it is switched off", text)
    assert f"take it out of `observers`, or set {CALLBACK_TIMEOUT}=1.8" in text
    assert [event.step for event in seen] == [6, 7, 8]
    from axl_lamp.lamp import SEEN

    assert SEEN == [6, 7]


def test_an_observer_cannot_end_the_process(lamp):
    emit = Observers(named_observers(["ender"]))
    with pytest.warns(UserWarning, match=r"'ender' .* wants to end the process: SystemExit\(3\)"):
        emit(RunFinished(step=1, is_complete=True))


def test_a_time_limit_of_callbacks_that_is_none_is_refused_before_a_run(toy_config, monkeypatch):
    monkeypatch.setenv(CALLBACK_TIMEOUT, "soon")
    with pytest.raises(PluginError, match="TIMEOUT_S is 'soon'; expected a number of seconds"):
        check_libraries(toy_config)


@pytest.mark.slow
def test_a_run_with_an_observer_that_hangs_goes_on_to_its_last_checkpoint(
    lamp, toy_config, one_device, directory, monkeypatch
):
    monkeypatch.setenv(CALLBACK_TIMEOUT, "2")
    trainer = one_device(update_config(toy_config, {"logging.observers": ("asleep",)}))
    with pytest.warns(UserWarning, match="'asleep' .* has not finished after 2 s"):
        result = trainer.run(directory)
    assert result.is_complete
    assert (directory / "checkpoints/step_00000012").is_dir()


@pytest.mark.slow
def test_an_observer_that_raises_at_step_7_is_switched_off_by_name_and_the_run_goes_on(
    lamp, toy_config, one_device, directory
):
    events = []
    trainer = one_device(update_config(toy_config, {"logging.observers": ("faulty", "heartbeat")}))
    with pytest.warns(UserWarning, match="switched off") as caught:
        result = trainer.run(directory, [events.append])
    (warning,) = [str(one.message) for one in caught]
    assert "the observer 'faulty' of plugin 'axl-lamp' raised RuntimeError" in warning
    assert "the lamp burned out at StepsDone of step 7; it is switched off" in warning
    from axl_lamp.lamp import SEEN

    assert SEEN[-1] == 7
    assert result.is_complete
    assert events[-1] == RunFinished(step=12, is_complete=True)
    assert [one.step for one in events if isinstance(one, StepsDone)] == [*range(1, 13)]
    assert json.loads((directory / "heartbeat.json").read_text())["step"] == 12


@pytest.mark.slow
def test_an_observer_that_cannot_be_made_is_switched_off_too(
    lamp, toy_config, one_device, directory
):
    trainer = one_device(
        update_config(toy_config, {"max_steps": 5, "logging.observers": ("stillborn",)})
    )
    with pytest.warns(UserWarning, match="ValueError: no socket at RunStarted of step 0"):
        assert trainer.run(directory).is_complete


@pytest.mark.slow
def test_heartbeat_tells_step_time_and_process_at_each_report(toy_config, one_device, directory):
    beats = []

    def look(event):
        path = directory / "heartbeat.json"
        if isinstance(event, CheckpointSaved):  # which comes when the disk is done
            return
        beats.append(json.loads(path.read_text()) if path.exists() else None)

    one_device(
        update_config(toy_config, {"max_steps": 5, "logging.observers": ("heartbeat",)})
    ).run(directory, [look])
    assert [beat and beat["step"] for beat in beats] == [None, 0, 1, 2, 3, 4, 4, 5, 5]
    assert {beat["pid"] for beat in beats[1:]} == {os.getpid()}
    times = [datetime.fromisoformat(beat["time"]) for beat in beats[1:]]
    assert times == sorted(times)
    assert timedelta(0) <= datetime.now(UTC) - times[-1] < timedelta(minutes=1)


def test_nobody_watches_unasked(lamp, toy_trainer, whole_run):
    assert not (whole_run[0] / "heartbeat.json").exists()
    assert toy_trainer.config.logging.observers == ()


def test_observers_that_are_unknown_are_refused_with_writers_that_are(toy_config, one_device):
    with pytest.raises(ConfigError) as raised:
        one_device(
            update_config(
                toy_config,
                {"logging.observers": ("heartbeet",), "logging.writers": ("jason_lines",)},
            )
        )
    text = str(raised.value)
    assert "logging.observers: unknown observer 'heartbeet'; did you mean 'heartbeat'" in text
    assert "logging.writers: unknown metric writer 'jason_lines'; did you mean" in text


@pytest.fixture(scope="module")
def seen(toy_trainer, tmp_path_factory):
    """The events of a full run, with an observer that raises at the second step."""
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


def done(step, step_time_s):
    return StepsDone(step=step, metrics={"step_time_s": step_time_s})


def test_the_time_left_leaves_out_what_came_before_the_first_report(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    clock = progress.Clock(SimpleNamespace(step=0, max_steps=100))
    now[0] = 600.0  # of compiling
    assert clock.left(done(10, 2.0)) == "3m00s"
    now[0] += 30.0
    assert clock.left(done(20, 2.0)) == "4m00s"
    now[0] += 60 * 3600.0
    assert clock.left(done(99, 2.0)) == "40m27s"
