"""A test that takes long has a mark that says so."""

import os
import re
import subprocess
import sys

import pytest

TESTS = """
import subprocess, sys, time
import pytest

BURN = "import time\\nwhile time.process_time() < 0.6: pass"

def burn():
    end = time.process_time() + 0.6
    while time.process_time() < end:
        pass

@pytest.fixture(scope="module")
def made():
    burn()

def test_computes(): burn()
def test_waits(): time.sleep(0.6)
def test_starts_a_process(): subprocess.run([sys.executable, "-c", BURN], check=True)
def test_sets_up(made): pass
def test_finds_it_made(made): pass
@pytest.mark.slow
def test_is_marked(): burn()
"""


def run(folder, *options):
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    all_options = [
        "-p",
        "time_budget",
        "-p",
        "no:cacheprovider",
        "-rA",
        *options,
    ]
    program = (
        f"import sys; sys.path[:] = {sys.path}; import pytest; sys.exit(pytest.main({all_options}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout


def test_processor_time_is_limited_and_waiting_is_not(tmp_path):
    text = run(tmp_path, "--most-cpu-s=0.04")
    found = re.findall(r"^(\w+) test_it\.py::(\w+)", text, re.MULTILINE)
    assert {name: end for end, name in found} == {
        "test_computes": "FAILED",
        "test_waits": "PASSED",
        "test_starts_a_process": "FAILED",
        "test_sets_up": "ERROR",
        "test_finds_it_made": "PASSED",
        "test_is_marked": "PASSED",
    }
    assert re.search(r"the test took 0\.\d s of processor time; 0\.04 is the limit", text)


@pytest.mark.slow
def test_less_than_twelve_times_the_limit_is_listed_and_fails_nothing(tmp_path):
    text = run(tmp_path, "--most-cpu-s=0.5")
    assert "6 passed" in text
    listed = text.partition("3 over the time limit")[2]
    assert re.findall(r"^test_it\.py::(\w+): (setup|the test) took", listed, re.MULTILINE) == [
        ("test_computes", "the test"),
        ("test_sets_up", "setup"),
        ("test_starts_a_process", "the test"),
    ]
