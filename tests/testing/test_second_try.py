"""A test that fails is tried once more, and its first failure is printed where it then passes."""

import re
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
MAKEFILE = Path(__file__).parents[2] / "Makefile"

TESTS = """
from pathlib import Path

FILE = Path(__file__).with_name("seen")

def test_unsteady():
    was_seen = FILE.exists()
    FILE.touch()
    assert was_seen, "what the first try saw"

def test_broken():
    assert False, "what every try sees"
"""


def test_first_failure_is_printed_and_what_fails_again_is_a_failure(tmp_path):
    file = tmp_path / "test_two.py"
    file.write_text(TESTS)
    reruns = re.findall(r"--reruns \d+", MAKEFILE.read_text())
    options = ["-p", "second_try", "-p", "no:cacheprovider", *reruns[0].split()]
    path = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import pytest"
    code = f"{path}; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *options, str(file)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed, 1 passed, 2 rerun" in ended.stdout
    _, _, listed = ended.stdout.partition("1 passed at the second try only: fix them")
    listed, _, _ = listed.partition("short test summary info")
    assert "test_two.py::test_unsteady (call)" in listed
    assert "what the first try saw" in listed
    assert "test_broken" not in listed
