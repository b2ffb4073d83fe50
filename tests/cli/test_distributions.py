"""Wheels and sdists of a commit: the same bytes each time, and all that a user needs is in them."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from build_distributions import build  # noqa: E402

PACKAGES = {"axcore": ROOT} | {one.name: one for one in sorted(ROOT.glob("plugins/axl_*"))}
VARIABLES = {"HOME", "LANG", "PATH", "TMPDIR"} | {one for one in os.environ if "PIP" in one}

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="this is not a checkout"
)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_a_commit_gives_the_same_bytes_each_time(distributions, tmp_path):
    again = {path.name: path.read_bytes() for path in build(tmp_path)}
    assert {path.name: path.read_bytes() for path in distributions} == again


@pytest.mark.slow
def test_every_file_of_a_package_is_in_its_wheel_and_its_sdist(distributions):
    for package, folder in PACKAGES.items():
        listed = subprocess.run(
            ["git", "ls-files", package], cwd=folder, check=True, capture_output=True, text=True
        )
        files = set(listed.stdout.split())
        (wheel,) = (
            one
            for one in distributions
            if one.name.startswith(f"{package}-0") and one.suffix == ".whl"
        )
        assert files <= set(zipfile.ZipFile(wheel).namelist()), package
        (sdist,) = (
            one
            for one in distributions
            if one.name.startswith(f"{package}-0") and one.suffix == ".gz"
        )
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert files <= names, package


@pytest.mark.long
def test_a_user_installs_the_wheels_trains_and_takes_them_off(distributions, tmp_path):
    wheels = [str(one) for one in distributions if one.suffix == ".whl"]
    venv, folder = tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()
    variables = {name: os.environ[name] for name in VARIABLES & set(os.environ)}

    def run(*command):
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    run(sys.executable, "-m", "venv", str(venv))
    pip = (str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "install", "-c", str(ROOT / "constraints.txt"), *wheels)
    axcore = str(venv / "bin/axcore")
    assert "axl-vision" in run(axcore, "plugins")
    run(axcore, "train", "tiny", "--set", "max_steps=2", "--set", "data.seq_len=32")
    assert run(axcore, "generate", "runs/tiny", "--prompt", "def ")
    run(axcore, "report", "runs/tiny")
    run(axcore, "doctor")
    run(*pip, "uninstall", "-y", *(one.replace("_", "-") for one in PACKAGES))
    left = [one.name for one in (venv / "lib").rglob("ax*") if one.name.split("_")[0] in PACKAGES]
    assert not left
