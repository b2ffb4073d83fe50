"""`axcore plugin new`: each kind installs in a fresh environment and passes its own tests there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from axcore.cli.plugin_files import KINDS, NewPlugin
from axcore.errors import PluginError


def install(folders: list[Path], target: Path) -> None:
    """Installs distributions as pip does, into a folder of their own."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    pip += ["--disable-pip-version-check", "--no-index", "--target", str(target)]
    ran = subprocess.run([*pip, *map(str, folders)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def environment(target: Path, names: list[str]) -> dict[str, str]:
    """Returns variables under which those plugins, and no others, are there."""
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    plugins = {"PYTHONPATH": str(target), "AXCORE_PLUGINS": ",".join(names)}
    return {**os.environ, **plugins, "XLA_FLAGS": flags}


def test_every_kind_installs_and_passes_its_own_tests(tmp_path):
    plugins = [NewPlugin.named(f"my-{kind}", kind) for kind in KINDS]
    folders = [tmp_path / plugin.distribution for plugin in plugins]
    for plugin, folder in zip(plugins, folders, strict=True):
        plugin.write(folder)
    install(folders, tmp_path / "installed")
    names = [plugin.distribution for plugin in plugins]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "--import-mode=importlib"]
        + ["-p", "no:cacheprovider", *(str(folder / "tests") for folder in folders)],
        cwd=tmp_path,
        env=environment(tmp_path / "installed", names),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "skipped" not in ran.stdout


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
    ran = cli("plugin", "new", "acme", "--kind", "launcher")
    assert ran.exit_code == 2
    assert "'data', 'hardware', 'kernels', 'layers'" in ran.stderr
