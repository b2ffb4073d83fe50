"""The frame: lazy commands, errors as one message, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from axcore import errors
from axcore.cli.main import error_text, main
from axcore.errors import AxcoreError, CheckpointError, PluginError
from axcore.plugins import Command, plugin_host
from axcore.testing import make_dist

ROOT = Path(__file__).parents[2]


def axcore(*arguments: str, path: Path | None = None, **environment: str):
    """Runs the command line as a user would, in a fresh interpreter."""
    search = os.pathsep.join([str(path)] if path else [])
    return subprocess.run(
        [sys.executable, "-m", "axcore", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": search, **environment},
    )


def command_plugin(root: Path, body: str) -> Path:
    """Installs a plugin with one command, `acme`, whose module has that body."""
    plugin = """
        from axcore.plugins import Command, Ref, hook

        @hook.commands
        def commands():
            yield Command(name="acme", fn=Ref("axl_acme.cli:acme"), summary="Shows chip load")
    """
    make_dist(root, "axl-acme", plugin, files={"cli.py": body})
    return root


def test_help_shows_every_command_with_its_summary_and_imports_no_jax():
    program = "import sys; from axcore.cli.main import group; group(['--help'], 'axcore', "
    program += "standalone_mode=False); print([m for m in sys.modules if m.startswith('jax')])"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"
    for record in plugin_host().records(Command):
        assert f"  {record.name} " in ran.stdout
        assert record.summary.split()[-1] in ran.stdout


def test_a_warning_is_one_line_without_the_place_in_the_source(tmp_path):
    body = "import warnings, click\n@click.command()\ndef acme(): warnings.warn('it is odd')\n"
    ran = axcore("acme", path=command_plugin(tmp_path, body))
    assert (ran.returncode, ran.stderr) == (0, "warning: it is odd\n")


def test_help_of_every_command_works(capsys):
    for record in plugin_host().records(Command):
        with pytest.raises(SystemExit) as ended:
            main([record.name, "--help"])
        assert ended.value.code == 0
        assert f"Usage: axcore {record.name}" in capsys.readouterr().out


def test_commands_of_plugins_are_listed_without_importing_them(tmp_path):
    root = command_plugin(tmp_path, "raise SystemExit('imported')")
    ran = axcore("--help", path=root)
    assert ran.returncode == 0
    assert re.search(r"acme +Shows chip load", ran.stdout)


def test_command_of_a_plugin_runs(tmp_path):
    body = "import click\n@click.command()\ndef acme(): click.echo('load 3')"
    assert axcore("acme", path=command_plugin(tmp_path, body)).stdout == "load 3\n"


def test_command_that_is_no_click_command_is_refused_naming_the_plugin(tmp_path):
    ran = axcore("acme", path=command_plugin(tmp_path, "acme = 3"))
    assert ran.returncode == PluginError.exit_code
    assert "command 'acme' of plugin 'axl-acme', is 3; expected a click command" in ran.stderr
    assert "set AXCORE_BLOCK=axl-acme" in ran.stderr


def test_plugin_that_fails_does_not_break_help_and_is_named_there(tmp_path):
    make_dist(tmp_path, "axl-acme", "1 / 0")
    ran = axcore("--help", path=tmp_path)
    assert ran.returncode == 0
    assert "Broken plugins: axl-acme" in ran.stdout
    assert "plugins" in ran.stdout


RAISE = """
import click
from axcore.errors import {error}

@click.command()
def acme():
    raise {raised}
"""


def raising(root: Path, raised: str, error: str = "AxcoreError") -> Path:
    return command_plugin(root, RAISE.format(raised=raised, error=error))


def test_error_is_one_message_on_stderr_and_its_exit_code(tmp_path):
    raised = "CheckpointError('step 3 is cut short', where='runs/a', hint='use step 2')"
    ran = axcore("acme", path=raising(tmp_path, raised, "CheckpointError"))
    assert ran.returncode == CheckpointError.exit_code
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == [
        "CheckpointError: step 3 is cut short",
        "  where:  runs/a",
        "  hint:   use step 2",
    ]


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--traceback", "acme"], {}),
        (["acme", "--traceback"], {}),
        (["acme"], {"AXCORE_TRACEBACK": "1"}),
    ],
)
def test_traceback_is_shown_when_asked_and_the_exit_code_stays(tmp_path, arguments, environment):
    root = raising(tmp_path, "AxcoreError('broken')")
    ran = axcore(*arguments, path=root, **environment)
    assert ran.returncode == 1
    assert "Traceback (most recent call last)" in ran.stderr
    assert "axl_acme/cli.py" in ran.stderr


def test_unexpected_exception_is_not_swallowed(tmp_path):
    ran = axcore("acme", path=raising(tmp_path, "ZeroDivisionError('by design')"))
    assert ran.returncode == 1
    assert "Traceback (most recent call last)" in ran.stderr
    assert "ZeroDivisionError: by design" in ran.stderr


@pytest.mark.slow
def test_full_memory_is_explained_in_any_command(tmp_path):
    path = raising(tmp_path, "MemoryError('Unable to allocate 9.00 GiB')")
    ran = axcore("acme", path=path)
    assert ran.returncode == 1
    assert ran.stderr.startswith("AxcoreError: the host's memory is full")
    assert "Unable to allocate 9.00 GiB" in ran.stderr
    assert "hint:   a smaller model" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "MemoryError" in axcore("acme", "--traceback", path=path).stderr


def test_notes_of_an_error_are_shown():
    error = AxcoreError("broken")
    error.add_note("while building model.decoder")
    assert error_text(error) == "AxcoreError: broken\n  while building model.decoder"


def test_misspelt_command_says_what_is_near(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2
    assert "there is no command 'trian'; did you mean 'train'" in capsys.readouterr().err


def test_misspelt_option_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plugins", "--jsn"])
    assert ended.value.code == 2
    assert "--jsn" in capsys.readouterr().err


def test_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert "0.1.0" in capsys.readouterr().out


def test_exit_codes_are_the_documented_ones():
    text = (ROOT / "docs" / "exit-codes.md").read_text()
    documented = {
        name: int(code)
        for code, named in re.findall(r"^\| (\d+) \| (.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+Error)`", named)
    }
    raised = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, AxcoreError)
    }
    assert documented == raised


def test_json_output_is_alone_on_stdout():
    assert json.loads(axcore("plugins", "--json").stdout)[0]["name"] == "core"


@pytest.mark.parametrize(
    ("arguments", "is_kept"),
    [
        ("train --help", True),
        ("eval --help", True),
        ("serve --help", False),
        ("--traceback generate --help", False),
    ],
)
def test_freed_memory_is_kept_on_host_processors_but_by_engines(arguments, is_kept, monkeypatch):
    kept = []
    monkeypatch.setattr("axcore.cli.main.keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert bool(kept) is is_kept
