"""A file that names a base holds only what differs from it."""

import pytest
from click.testing import CliRunner

import axcore as ax
from axcore.cli.main import group
from axcore.config import diff_config, origin_of
from axcore.errors import ConfigError
from axcore.experiments.tiny import tiny


def written(folder, text, name="mine.yaml"):
    (folder / name).write_text(text)
    return str(folder / name)


def test_paths_nested_mappings_and_globs_are_laid_over_the_base(tmp_path):
    text = (
        "base: tiny\nmax_steps: 7\nmodel:\n  dim: 64\n  decoder.stack:\n    num_layers: 2\n"
        '"**.dropout.rate": 0.25\nmesh: {fsdp: 2}\nlearner.optimizer:\n'
        "  type: 'axcore.learner.optimizers:AdamW.Config'\n  epsilon: 1e-6\n"
    )
    file = written(tmp_path, text)
    cfg = ax.experiment(file)
    wanted = {
        "max_steps": 7,
        "model.dim": 64,
        "model.decoder.stack.num_layers": 2,
        "**.dropout.rate": 0.25,
        "mesh": {"fsdp": 2},
    }
    same = ax.update_config(tiny(), wanted)
    assert {one.path for one in diff_config(same, cfg)} <= {"learner.optimizer.epsilon"}
    assert cfg.learner.optimizer.epsilon == 1e-6
    assert str(origin_of(cfg, "model.dim")) == file


def test_a_base_may_be_another_file_and_json_is_read_alike(tmp_path):
    written(tmp_path, '{"base": "tiny", "model": {"dim": 64}, "max_steps": 5}', "wide.json")
    cfg = ax.experiment(written(tmp_path, "base: wide.json\nmax_steps: 9\n"))
    assert (cfg.model.dim, cfg.max_steps) == (64, 9)


def test_config_show_says_which_file_set_a_value(tmp_path):
    file = written(tmp_path, "base: tiny\nmodel: {dim: 64}\n")
    shown = (
        CliRunner()
        .invoke(group, ["config", "show", file, "--origins"], catch_exceptions=False)
        .output
    )
    (line,) = [one for one in shown.splitlines() if one.startswith("model.dim:")]
    assert line.startswith("model.dim: 64")
    assert file in line


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("base: tinny\n", r"there is no experiment 'tinny'.*tiny"),
        ("base: 3\n", "base is 3; expected the name of an experiment"),
        ("base: mine.yaml\n", "the file is its own base"),
        ("base: tiny\nmodel: {dimm: 64}\n", r"(?s)dim.*set in: .*mine\.yaml"),
        ("base: tiny\nmodle: {dim: 64}\n", r"(?s)set in: .*mine\.yaml.*did you mean 'model'"),
        ("base: tiny\nmodel.dim: wide\n", r"(?s)dim is 'wide'.*set in: .*mine\.yaml"),
        ("base: tiny\nmodel: {dim: 64}\nmodel.dim: 65\n", r"(?s)it is set twice.*model\.dim"),
        ("model: {dim: 64}\n", r"(?s)not a config.*hint:   add type: module:Class"),
        ("", r"--format yaml > FILE"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_file(tmp_path, text, match):
    with pytest.raises(ConfigError, match=match):
        ax.experiment(written(tmp_path, text))


def test_an_empty_json_file_is_answered_with_json(tmp_path):
    with pytest.raises(ConfigError, match="--format json > FILE"):
        ax.experiment(written(tmp_path, "", "mine.json"))
