"""What a command is to write is checked before it works, and written atomically."""

import subprocess
import sys

import pytest
from click.testing import CliRunner
from quick_flags import quick_environment

from axcore.cli.main import group, main
from axcore.errors import ConfigError, DataError

WRITING = {
    "config schema": (("config", "schema", "tiny"), "--out"),
    "data show": (("data", "show", "no_store"), "--html"),
    "report": (("report", "no_run"), "--out"),
    "profile": (("profile", "no_run"), "--html"),
    "aot": (("aot", "no_experiment", "--target", "cpu-1"), "--html"),
    "kernels tune": (("kernels", "tune", "no/kernel"), "--out"),
    "evaluate": (("evaluate", "no_run", "--tasks", "arithmetic"), "--output"),
    "plugin new": (("plugin", "new", "mine", "--kind", "kernels"), "--dir"),
}


@pytest.mark.parametrize("name", WRITING)
def test_a_place_below_a_file_is_refused_before_anything_else(name, tmp_path):
    words, option = WRITING[name]
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(group, [*words, option, str(tmp_path / "file" / "out")])
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} is a file, and no folder" in result.output
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("name", ["config schema", "data show", "report", "profile", "aot"])
def test_a_folder_where_a_file_is_to_be_written_is_refused(name, tmp_path):
    words, option = WRITING[name]
    result = CliRunner().invoke(group, [*words, option, str(tmp_path)])
    assert result.exit_code == 2
    assert "is a directory" in result.output


def test_the_folder_of_a_file_is_made(tmp_path):
    out = tmp_path / "new" / "schema.json"
    words = ["config", "schema", "tiny"]
    CliRunner().invoke(group, [*words, "--out", str(out)], catch_exceptions=False)
    assert out.read_text() == CliRunner().invoke(group, words).output


def test_a_file_that_the_system_refuses_is_an_error_of_one_message():
    words = ["config", "schema", "tiny", "--out", "/proc/schema.json"]
    with pytest.raises(ConfigError, match="the file cannot be written") as error:
        CliRunner().invoke(group, words, catch_exceptions=False)
    assert error.value.where == "/proc/schema.json"


def test_an_error_about_a_file_has_no_traceback(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["config", "golden", "tiny", str(tmp_path / ("x" * 300))])
    assert ended.value.code == 1
    assert "Traceback" not in (error := capsys.readouterr().err)
    assert error.startswith("OSError: [Errno 36] File name too long")


def test_ctrl_c_while_the_command_is_imported_is_one_line():
    program = (
        "import os, runpy, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'axcore.cli.work_lines': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "sys.argv = ['axcore', 'plugins']\n"
        "runpy.run_module('axcore', run_name='__main__', alter_sys=True)\n"
    )
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, env=quick_environment(), capture_output=True, text=True)
    assert ended.returncode == 130
    assert ended.stderr.strip().startswith("stopped by Ctrl-C")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("task", "error", "where", "hint"),
    [
        (
            "mmlu",
            ConfigError,
            "mmlu.samples.path",
            "--tasks mmlu:FILE, or --set mmlu.samples.path=FILE",
        ),
        ("mmlu:nofile.csv", DataError, "nofile.csv", None),
    ],
)
def test_samples_are_looked_for_before_the_model(task, error, where, hint):
    with pytest.raises(error) as raised:
        CliRunner().invoke(group, ["evaluate", "no_model", "--tasks", task], catch_exceptions=False)
    assert (raised.value.where, raised.value.hint) == (where, hint)
