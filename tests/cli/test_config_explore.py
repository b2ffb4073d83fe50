"""Looking around in a config, and completing what is typed."""

import json
import subprocess

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import axcore as ax
from axcore.cli.main import group
from axcore.config import REQUIRED, render_config
from axcore.config.fields import fields_of
from axcore.errors import ConfigError


def call(*words):
    return CliRunner().invoke(group, words, catch_exceptions=False).output


def test_every_line_of_a_rendered_config_is_a_field():
    cfg = ax.experiment("tiny")
    shown = {one.path: one for one in fields_of(cfg)}
    for line in render_config(cfg).splitlines()[1:]:
        path, _, _ = line.partition(": ")
        assert not shown[path].is_default, path
    required = [path for path, one in shown.items() if one.is_required]
    assert "model.decoder.dim" in required
    assert all(_value(cfg, path) is REQUIRED for path in required)


def _value(cfg, path):
    for step in path.split("."):
        cfg = getattr(cfg, step)
    return cfg


def test_a_field_has_type_value_doc_and_origin():
    (line,) = call("config", "explore", "tiny", "--at", "max_steps").splitlines()
    assert line.startswith("*max_steps = 450 (int)  Steps of the run.  [tiny (axcore/experiments/")
    (found,) = json.loads(call("config", "explore", "tiny", "--at", "seed", "--json"))
    assert (found["value"], found["is_default"], found["set_in"]) == ("0", True, "")


def test_what_is_shown_is_narrowed():
    at = "model.decoder.stack.layer.feed_forward"
    shown = call("config", "explore", "tiny", "--at", at, "--depth", "1", "--json")
    below = type(_value(ax.experiment("tiny"), at)).__config_fields__
    assert [one["path"] for one in json.loads(shown)] == [at, *(f"{at}.{name}" for name in below)]
    lines = call("config", "explore", "tiny", "--search", "hidden UNITS").splitlines()
    assert len(lines) == 1
    assert "hidden_dim = 384" in lines[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--at", "modle"), "no config at 'modle'"), (("--search", "xyzzy"), "has 'xyzzy'")],
)
def test_nothing_found_is_an_error(words, message):
    with pytest.raises(ConfigError, match=message):
        call("config", "explore", "tiny", *words)


def test_the_schema_is_written_or_printed(tmp_path):
    call("config", "schema", "tiny", "--out", str(tmp_path / "tiny.json"))
    assert (tmp_path / "tiny.json").read_text() == call("config", "schema", "tiny")


def completed(arguments, typed):
    shell = ShellComplete(group, {}, "axcore", "_AXCORE_COMPLETE")
    return [item.value for item in shell.get_completions(arguments, typed)]


def test_experiments_targets_changes_paths_and_runs_are_completed(tmp_path, monkeypatch):
    assert completed(["train"], "tin") == ["tiny"]
    assert "tpu-v5e-4" in completed(["train", "tiny", "--target"], "tpu-v5e")
    assert "int8_training" in completed(["train", "tiny", "--modify"], "int8")
    found = completed(["train", "tiny", "--set"], "learner.sch")
    assert "learner.schedule.peak=" in found
    assert completed(["train", "tiny", "--set"], "seed=") == []
    assert completed(["train", "none", "--set"], "se") == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.json").write_text("{}")
    assert completed(["generate"], "runs/") == ["runs/one", "runs/"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_the_shells(shell):
    script = call("completion", shell)
    assert "_AXCORE_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
