"""Observers that a config names: the heartbeat, and one of a plugin that raises."""

import json
import os
import re
from datetime import UTC, datetime, timedelta

import pytest

from axcore.config import evolve
from axcore.errors import ConfigError, PluginError
from axcore.plugins.time_limit import CALLBACK_TIMEOUT
from axcore.trainer import CheckpointSaved, RunFinished, StepsDone
from axcore.trainer.callbacks.events import Observers
from axcore.trainer.callbacks.observers import named_observers
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
    trainer = one_device(evolve(toy_config, observers=("asleep",)))
    with pytest.warns(UserWarning, match="'asleep' .* has not finished after 2 s"):
        result = trainer.run(directory)
    assert result.is_complete
    assert (directory / "checkpoints/step_00000012").is_dir()


@pytest.mark.slow
def test_an_observer_that_raises_at_step_7_is_switched_off_by_name_and_the_run_goes_on(
    lamp, toy_config, one_device, directory
):
    events = []
    trainer = one_device(evolve(toy_config, observers=("faulty", "heartbeat")))
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
    trainer = one_device(evolve(toy_config, max_steps=5, observers=("stillborn",)))
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

    one_device(evolve(toy_config, max_steps=5, observers=("heartbeat",))).run(directory, [look])
    assert [beat and beat["step"] for beat in beats] == [None, 0, 1, 2, 3, 4, 4, 5, 5]
    assert {beat["pid"] for beat in beats[1:]} == {os.getpid()}
    times = [datetime.fromisoformat(beat["time"]) for beat in beats[1:]]
    assert times == sorted(times)
    assert timedelta(0) <= datetime.now(UTC) - times[-1] < timedelta(minutes=1)


def test_nobody_watches_unasked(lamp, toy_trainer, whole_run):
    assert not (whole_run[0] / "heartbeat.json").exists()
    assert toy_trainer.config.observers == ()


def test_observers_that_are_unknown_are_refused_with_writers_that_are(toy_config, one_device):
    with pytest.raises(ConfigError) as raised:
        one_device(evolve(toy_config, observers=("heartbeet",), writers=("jason_lines",)))
    text = str(raised.value)
    assert "observers names 'heartbeet', which is no observer; did you mean 'heartbeat'" in text
    assert "writers names 'jason_lines', which is no metric writer; did you mean" in text
