"""Starting devices where software for accelerators is installed and there is none."""

import os
import subprocess
import sys

import pytest

JAX_PLUGIN = """
import os, sys
def initialize():
    os.write(2, b"E0000 below python: no slot\\n")
    if "END" in os.environ:
        print("ended by a signal", file=sys.stderr)
        os._exit(3)
    raise RuntimeError("acme does not load")
"""


@pytest.fixture
def start(tmp_path):
    """Returns what a process printed that ran a program with a plugin of jax that fails."""
    package = tmp_path / "jax_plugins" / "acme"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(JAX_PLUGIN)

    def run(program, **variables):
        environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        return subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "PYTHONPATH": path, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


START = "from axcore.hardware.device_start import start_devices\n"


@pytest.mark.slow
def test_complaints_of_software_without_hardware_are_one_line(start):
    ran = start(f"{START}print(start_devices(is_present=False)[0].platform)")
    assert ran.stdout == "cpu\n"
    (note,) = ran.stderr.splitlines()
    assert note.startswith("note: software for accelerators is installed and found none")


@pytest.mark.slow
def test_whoever_wants_them_gets_them_whole(start):
    ran = start(f"{START}start_devices(is_present=False, unused=print)")
    assert ran.stderr == ""
    for part in ("E0000 below python", "RuntimeError: acme does not load"):
        assert part in ran.stdout


@pytest.mark.slow
def test_where_hardware_is_present_they_are_written_as_they_come(start):
    ran = start(f"{START}start_devices(is_present=True)")
    assert "E0000 below python" in ran.stderr
    assert "note:" not in ran.stderr


@pytest.mark.slow
def test_they_are_written_where_no_device_starts(start):
    ran = start(f"{START}start_devices(is_present=False)", JAX_PLATFORMS="acme")
    assert ran.returncode != 0
    assert "E0000 below python" in ran.stderr
    assert "Unable to initialize backend" in ran.stderr


@pytest.mark.slow
def test_what_python_says_itself_is_written_though_it_ends_meanwhile(start):
    ran = start(f"{START}start_devices(is_present=False)", END="1")
    assert ran.returncode == 3
    assert ran.stderr == "ended by a signal\n"


@pytest.mark.slow
def test_whoever_names_cpu_is_not_told_of_others(start):
    ran = start(f"{START}start_devices(is_present=False)", JAX_PLATFORMS="cpu")
    assert ran.returncode == 0
    assert ran.stderr == ""
