"""`axcore config` and completion: what they show, on hardware too, and how parameters split."""

import json
import subprocess

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import axcore as ax
from axcore.cli.main import group, main
from axcore.cli.sharding import sharding_table
from axcore.config import REQUIRED, evolve, render_config, replace_config, update_config
from axcore.config.render import fields_of
from axcore.errors import ConfigError, ShardingError
from axcore.experiments.tiny import tiny
from axcore.layers import Pipeline, ScannedLayers
from axcore.plugins import Hardware
from axcore.trainer import resolve


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
    assert completed(["train"], "tin") == ["tiny", "tiny-bert"]
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


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["config", *arguments])
    return ended.value.code


def test_diff_of_two_targets_shows_what_their_rules_do_differently(capsys):
    assert run("diff", "llama2-7b", "--target=tpu-v4-512", "--target=tpu-v5e-256") == 1
    lines = capsys.readouterr().out.splitlines()
    path = "model.decoder.stack.layer.feed_forward.linear.dot"
    assert f"- {path}: PlainDot" in lines
    assert f"+ {path}: Int8Dynamic" in lines
    assert not [line for line in lines if "remat" in line or "mesh" in line]


def test_diff_of_one_target_compares_the_changes_on_it(capsys):
    assert run("diff", "tiny", "--target=tpu-v5e-4", "--modify=accumulate") == 1
    assert capsys.readouterr().out == "- num_micro_batches: 1\n+ num_micro_batches: 2\n"


def test_changes_and_overrides_are_on_both_of_two_targets(capsys):
    asked = ("--modify=accumulate(factor=4)", "--set=seed=3")
    assert run("diff", "tiny", "--target=tpu-v5e-4", "--target=gpu-h100-8", *asked) == 0
    assert capsys.readouterr().out == ""


def test_show_on_a_target_has_its_rule_and_what_the_user_set_over_it(capsys):
    asked = ("--modify=remat(policy=minimal)", "--set=num_micro_batches=2")
    assert run("show", "llama3-70b", "--target=trainium-trn2-64", *asked) == 0
    shown = capsys.readouterr().out
    assert "mesh: {'fsdp': -1, 'model': 4}" in shown
    assert "num_micro_batches: 2" in shown
    assert "layer.remat.save: ('attention_query'" in shown


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("tpu-v9-8", "no plugin knows target 'tpu-v9-8'; did you mean 'tpu-v"),
        ("gpu-h100-12", "12 chips are not a whole number of hosts of 8"),
        ("tpu-v5p-3", "the number counts 2 per chip, and 3 is not a multiple"),
        ("llama", "does not end in a number"),
    ],
)
def test_a_target_that_nobody_knows_or_that_cannot_be_is_refused(capsys, target, said):
    assert run("show", "tiny", f"--target={target}") == 4
    told = capsys.readouterr().err
    assert said in told
    assert "hint:" in told


def test_three_targets_are_refused(capsys):
    targets = [f"--target=cpu-{count}" for count in (1, 2, 4)]
    assert run("diff", "tiny", *targets) == 2
    assert "3 targets are given" in capsys.readouterr().err


EIGHT = Hardware.parse("cpu-8")


def _lines(cfg):
    return sharding_table(resolve(cfg, EIGHT)).splitlines()


def test_every_parameter_has_a_line_with_its_parts_and_bytes():
    lines = _lines(evolve(tiny(), mesh={"fsdp": 4, "model": 2}))
    assert lines[0] == "mesh: fsdp 4 x model 2"
    (gate,) = [line for line in lines if "feed_forward.gate" in line]
    assert gate.split() == [
        "decoder.stack.layer.feed_forward.gate.weight",
        "4x128x384",
        *("-,", "fsdp,", "model"),
        f"{4 * 128 * 384 * 4 // 8:,}",
    ]


def test_what_stays_whole_is_named_and_everything_is_summed():
    lines = _lines(evolve(tiny(), mesh={"fsdp": 8}))
    start = next(i for i, line in enumerate(lines) if line.startswith("on every device in full"))
    assert lines[start + 1 : start + 4] == [
        "  decoder.norm.weight",
        "  decoder.stack.layer.attention_residual.norm.weight",
        "  decoder.stack.layer.feed_forward_residual.norm.weight",
    ]
    table = lines[lines[1:].index("") - 11 : lines[1:].index("") + 1]
    listed = sum(int(line.split()[-1].replace(",", "")) for line in table)
    assert f"{listed:,} bytes of parameters per device" in lines
    assert f"{2 * listed + 8:,} bytes of optimizer state per device" in lines  # two moments, counts


def test_on_one_device_nothing_is_called_whole():
    one = resolve(evolve(tiny(), mesh={"data": 1}), Hardware.parse("cpu-1"))
    lines = sharding_table(one).splitlines()
    assert lines[0] == "mesh: 1 device"
    assert not any("whole" in line for line in lines)


def test_pipelines_tell_their_bubble_and_slices_are_named():
    stack = Pipeline.Config(num_micro_batches=8, num_rounds=2)
    cfg = replace_config(tiny(), ScannedLayers, stack)
    cfg = evolve(cfg, mesh={"fsdp": 4}, slices={"pipeline": 2})
    lines = _lines(cfg)
    assert lines[:3] == [
        "mesh: pipeline 2 x fsdp 4",
        "slices: pipeline 2",
        "pipeline model.decoder.stack: 2 stages, 8 micro-batches, 2 rounds: 5.9 % bubble",
    ]
    (gate,) = [line for line in lines if "feed_forward.gate" in line]
    assert "-, pipeline, fsdp, -" in gate


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mesh": {"fsdp": 3}}, "needs 3 devices; there are 8"),
        ({"mesh": {"pipeline": 8}}, "mesh axis pipeline of size 8"),
        ({"mesh": {"fsdp": 2, "model": 4}, "model.vocab_size": 270}, "vocab is 270, model is 4"),
        ({"mesh": {"fsdp": 8}, "sharding.param_rules": {"emb": ("fsdp",)}}, "'emb'"),
    ],
)
def test_what_a_run_would_refuse_is_refused(changes, text):
    with pytest.raises(ShardingError, match=text):
        _lines(update_config(tiny(), changes))
