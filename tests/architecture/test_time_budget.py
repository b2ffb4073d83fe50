"""A test that takes long has a mark that says so."""

import re
import subprocess
import sys

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


def test_processor_time_is_limited_and_waiting_is_not(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    options = ("-p", "time_budget", "-p", "no:cacheprovider", "--most-cpu-s=0.4", "-rA")
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}; import pytest; "
         f"sys.exit(pytest.main({list(options)}))"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.findall(r"^(\w+) test_it\.py::(\w+)", ran.stdout, re.MULTILINE)
    assert {name: end for end, name in found} == {
        "test_computes": "FAILED",
        "test_waits": "PASSED",
        "test_starts_a_process": "FAILED",
        "test_sets_up": "ERROR",
        "test_finds_it_made": "PASSED",
        "test_is_marked": "PASSED",
    }
    assert re.search(r"the test took 0\.\d s of processor time; 0\.4 is the limit", ran.stdout)
