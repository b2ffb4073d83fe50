"""What tests count of a suite is printed at the end, from all processes and of last tries alone."""

import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"

TESTS = """
from pathlib import Path
import pytest
from counts import count

FILE = Path(__file__).with_name("seen")

@pytest.mark.parametrize("name", "abc")
def test_case(name):
    count("doors shut", name != "b", 1)
    assert name != "b"

def test_unsteady():
    was_seen = FILE.exists()
    FILE.touch()
    count("windows shut", 5 if was_seen else 0, 6)
    assert was_seen
"""


def test_counts_of_all_processes_are_added_up(tmp_path):
    file = tmp_path / "test_two.py"
    file.write_text(TESTS)
    path = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import pytest"
    options = ["-p", "counts", "-p", "no:cacheprovider", "-n", "2", "--reruns", "1", str(file)]
    command = [sys.executable, "-c", f"{path}; sys.exit(pytest.main({options!r}))"]
    environment = {"PYTHONPATH": str(SUPPORT), "PATH": "/bin"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "doors shut: 2 of 3\n" in ended.stdout, ended.stdout + ended.stderr
    assert "windows shut: 5 of 6\n" in ended.stdout
