"""Profiles of steps: what is recorded, and what is made of it."""

import gzip
import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
from click.testing import CliRunner

import axcore as ax
from axcore.cli.main import group
from axcore.errors import CheckpointError, ConfigError
from axcore.profiles import StepProfiler, parse_steps, read_profile, recorded_profiles
from axcore.profiles.summary import _with_own_time, length_of_union, read_trace
from axcore.runs import run_facts
from axcore.testing import small_experiment, trainer_on

pytestmark = pytest.mark.slow


def trained(folder, steps, *, num_steps=6):
    cfg = ax.update_config(
        small_experiment(folder / "texts"), {"mesh": {"fsdp": 1}, "max_steps": num_steps}
    )
    trainer = trainer_on(cfg, 1)
    profiler = StepProfiler(lambda: trainer.compiler.compiled_step.as_text(), steps)
    trainer.run(folder / "run", [profiler], quiet=True)
    return trainer, folder / "run"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("recorded"), parse_steps("3:5"))


def test_a_recording_names_the_modules_of_the_model(recorded):
    trainer, run = recorded
    (folder,) = recorded_profiles(run)
    assert folder.name == "3-5"
    found = read_profile(folder, trainer.model)
    assert found.steps == (3, 5)
    names = [part.name for part in found.modules]
    assert "decoder.stack.layer.attention.core" in names
    assert "learner" in names
    assert sum(part.share for part in found.modules) == pytest.approx(1)
    assert 0 < found.step_seconds < 10
    assert 0 <= found.idle_seconds < found.step_seconds
    assert found.exposed_seconds == 0
    named = [part for part in found.modules if part.name in ("head", "decoder.norm")]
    assert all(0 < part.backward_seconds < part.seconds for part in named)
    assert {part.name for part in found.kinds} >= {"product"}


def test_times_are_of_one_step(recorded):
    """Each instruction outside of loops ran once in each of the three steps."""
    _, run = recorded
    (folder,) = recorded_profiles(run)
    text = gzip.decompress((folder / "program.txt.gz").read_bytes()).decode()
    module = re.match(r"HloModule ([^,\s]+)", text)[1]
    names = [one.name for one in read_trace(folder, module)]
    counts = {name: names.count(name) for name in set(names)}
    assert np.median(list(counts.values())) == 3


def test_a_signal_records_the_next_three_steps(tmp_path):
    before = signal.getsignal(signal.SIGUSR1)

    class Asks:
        sees_phases = True
        steps = 0

        def __call__(self, event):
            if getattr(event, "label", "") == "step":
                self.steps += 1
                if self.steps == 2:
                    os.kill(os.getpid(), signal.SIGUSR1)

    cfg = ax.update_config(
        small_experiment(tmp_path / "texts"), {"mesh": {"fsdp": 1}, "max_steps": 7}
    )
    trainer = trainer_on(cfg, 1)
    try:
        profiler = StepProfiler(lambda: trainer.compiler.compiled_step.as_text())
        profiler.record_on_signal()
        trainer.run(tmp_path / "run", [Asks(), profiler], quiet=True)
    finally:
        signal.signal(signal.SIGUSR1, before)
    (folder,) = recorded_profiles(tmp_path / "run")
    first, last = json.loads((folder / "profile.json").read_text())["steps"]
    assert (first in (2, 3), last - first) == (True, 2)


def test_steps_that_never_ran_are_told(tmp_path):
    with pytest.warns(UserWarning, match="no step was profiled: 90:91"):
        trained(tmp_path, parse_steps("90:91"), num_steps=2)


def test_the_command_shows_and_compares(recorded):
    _, run = recorded
    folder = recorded_profiles(run)[0]
    call = lambda *words: CliRunner().invoke(group, [str(w) for w in words], catch_exceptions=False)  # noqa: E731
    shown = call("profile", run, "--top", 3).output
    assert re.match(r"steps 3 to 5 on cpu-1: \d+\.\d\d ms each", shown)
    assert "more)" in shown
    assert json.loads(call("profile", folder, "--json").output)["steps"] == [3, 5]
    rows = json.loads(call("profile", "compare", run, folder, "--json").output)
    assert all(row["before_seconds"] == row["after_seconds"] for row in rows)
    assert call("profile", run, run).exit_code == 2


def test_a_page_shows_the_recording_alone(recorded, tmp_path):
    _, run = recorded
    page = tmp_path / "profile.html"
    done = CliRunner().invoke(group, ["profile", str(run), "--html", str(page)])
    assert done.output.strip() == str(page)
    text = page.read_text("utf-8")
    assert '"part": "profile"' in text
    assert "decoder.stack.layer" in text.partition('id="facts"')[2].partition("</script>")[0]


def test_the_report_has_the_newest_recording(recorded):
    facts = run_facts(recorded[1])
    assert facts.profile["steps"] == (3, 5)
    assert facts.problems == []


def test_a_recording_that_takes_the_place_of_another_is_read(recorded, tmp_path):
    run = shutil.copytree(recorded[1], tmp_path / "run")
    assert run_facts(run).profile["steps"] == (3, 5)
    file = recorded_profiles(run)[0] / "profile.json"
    file.write_text(json.dumps({"steps": [3, 4], "hardware": "cpu-1"}))
    assert run_facts(run).profile["steps"] == (3, 4)


def test_damage_is_named(recorded, tmp_path):
    trainer, run = recorded
    folder = recorded_profiles(run)[0]
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_profile(tmp_path, trainer.model)
    (tmp_path / "profile.json").write_bytes((folder / "profile.json").read_bytes())
    (tmp_path / "program.txt.gz").write_bytes((folder / "program.txt.gz").read_bytes())
    with pytest.raises(CheckpointError, match="contains no trace"):
        read_profile(tmp_path, trainer.model)


@pytest.mark.parametrize("text", ["10", "13:10", "0:3", "a:b", ""])
def test_what_names_no_steps_is_refused(text):
    with pytest.raises(ConfigError, match="names no steps"):
        parse_steps(text)


def test_time_within_others_counts_once():
    spans = [(0.0, 10.0, "outer", "0"), (1.0, 4.0, "inner", "0"), (12.0, 13.0, "next", "0")]
    own = {one.name: one.own for one in _with_own_time(spans)}
    assert own == {"outer": 7.0, "inner": 3.0, "next": 1.0}
    assert length_of_union([(0, 2), (1, 3), (5, 6)]) == 4
