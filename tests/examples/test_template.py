"""`axcore plugin new`: each kind installs in a fresh environment and passes its own tests there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_environment import FreshEnvironment

from axcore.cli.plugins import KINDS, NewPlugin
from axcore.errors import PluginError
from axcore.plugins.records import Hooks


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A new environment in which a new plugin of each kind is installed, and their folders."""
    plugins = {kind: NewPlugin.named(f"my-{kind}", kind) for kind in KINDS}
    folder = tmp_path_factory.mktemp("written")
    folders = {kind: folder / plugin.distribution for kind, plugin in plugins.items()}
    for kind, plugin in plugins.items():
        plugin.write(folders[kind])
    names = [plugin.distribution for plugin in plugins.values()]
    made = FreshEnvironment(tmp_path_factory.mktemp("fresh"), names)
    made.install(*folders.values())
    return made, folders


@pytest.mark.slow
def test_every_kind_installs_and_passes_its_own_tests(fresh, tmp_path):
    made, folders = fresh
    ran = made.pytest(*(str(folder / "tests") for folder in folders.values()), folder=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert "skipped" not in ran.stdout


@pytest.mark.slow
def test_every_kind_is_listed_as_loaded(fresh, tmp_path):
    made, folders = fresh
    ran = made.axcore("plugins", "--json", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    loaded = {one["name"] for one in json.loads(ran.stdout) if one["state"] == "loaded"}
    assert loaded == {"core", *(folder.name for folder in folders.values())}


@pytest.mark.slow
def test_check_proves_what_was_written(fresh, tmp_path):
    made, _ = fresh
    ran = made.axcore("plugin", "check", "axl-my-layers", folder=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


WITHOUT = {
    *("adapter_formats", "aot_targets", "compiler_options", "data_transforms", "doctor_checks"),
    *("environment_flags", "hugging_face_families", "model_apis", "rope_scalings"),
}
"""Hooks that no kind of plugin begins with."""


def test_every_hook_but_those_named_has_a_kind():
    written = "".join(text for kind in KINDS for _, text in NewPlugin.named("acme", kind).files())
    assert (
        set(re.findall(r"^@hook\.(\w+)", written, re.MULTILINE)) == {*Hooks.decorators()} - WITHOUT
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_written_files_are_formatted(tmp_path, kind):
    NewPlugin.named("acme", kind).write(tmp_path / "axl_acme")
    rules = Path(__file__).parents[2] / "pyproject.toml"
    ran = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", "--no-cache", "--config", str(rules)]
        + [str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_written_files_pass_the_linter(tmp_path, kind):
    NewPlugin.named("acme", kind).write(tmp_path / "axl_acme")
    rules = Path(__file__).parents[2] / "pyproject.toml"
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--config",
            str(rules),
            "--no-cache",
            "--ignore",
            "D1",
        ]
        + [str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def test_name_may_have_the_prefix_or_not():
    assert NewPlugin.named("acme", "data") == NewPlugin.named("axl-acme", "data")


@pytest.mark.parametrize("name", ["", "axl-", "Acme", "a_b", "a--b", "2fast", "../up", "import"])
def test_name_that_cannot_be_a_package_is_refused(name):
    with pytest.raises(PluginError, match="cannot name a plugin"):
        NewPlugin.named(name, "data")


def test_folder_that_exists_is_left_as_it_is(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(PluginError, match="exists already"):
        NewPlugin.named("acme", "data").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_command_writes_what_it_says(cli, tmp_path):
    ran = cli("plugin", "new", "acme", "--kind", "layers")
    assert ran.exit_code == 0, ran.stderr
    assert (tmp_path / "axl_acme/axl_acme/norm.py").is_file()
    assert "wrote axl_acme/pyproject.toml" in ran.stdout
    assert "pip install -e axl_acme" in ran.stdout
    again = cli("plugin", "new", "acme", "--kind", "layers")
    assert again.exit_code == 4
    assert "axl_acme exists already" in again.stderr


def test_kind_that_is_not_there_is_refused(cli):
    ran = cli("plugin", "new", "acme", "--kind", "loader")
    assert ran.exit_code == 2
    assert all(repr(kind) in ran.stderr for kind in KINDS)
