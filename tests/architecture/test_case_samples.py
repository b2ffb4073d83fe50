"""Of a sweep a sample runs in CI, and every kernel is in it."""

import os
import re
import subprocess
import sys

TESTS = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("case", [f"op/{kernel}-{n}" for kernel in "abc" for n in range(16)])
def test_kernel_equals_the_reference(case): pass

@pytest.mark.slow
@pytest.mark.parametrize("case", range(10))
def test_sweep(case): pass

@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("case", range(10))
def test_claims(case): pass

@pytest.mark.quick_one_in(5)
@pytest.mark.parametrize("case", range(20))
def test_quick(case): pass
"""


def selected(folder, expression):
    """Returns the cases that an expression of marks selects, by test."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n    long: x\n")
    options = ["-p", "case_samples", "-p", "no:cacheprovider", "--collect-only", "-q"]
    program = f"import sys; sys.path[:] = {sys.path}; import pytest; pytest.main(sys.argv[1:])"
    ran = subprocess.run(
        [sys.executable, "-c", program, *options, "-m", expression],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    cases = {}
    for test, case in re.findall(r"test_it\.py::(\w+)\[(.+)\]", ran.stdout):
        cases.setdefault(test, set()).add(case)
    return cases


def test_each_kernel_each_claim_and_a_few_of_a_sweep_are_in_the_sample(tmp_path):
    found = selected(tmp_path, "slow and not long")
    assert {case[:4] for case in found["test_kernel_equals_the_reference"]} == {
        *("op/a", "op/b", "op/c")
    }
    assert 3 <= len(found["test_kernel_equals_the_reference"]) <= 5
    assert len(found["test_sweep"]) == len(found["test_quick"]) == 2
    assert len(found["test_claims"]) == 10


def test_no_case_is_in_two_runs_or_in_none(tmp_path):
    runs = [selected(tmp_path, one) for one in ("not slow", "slow and not long", "long")]
    for test in runs[2]:
        cases = [run.get(test, set()) for run in runs]
        assert sum(map(len, cases)) == len(set.union(*cases)), test
    assert len(set.union(*(run.get("test_quick", set()) for run in runs))) == 20
    assert runs[0]["test_quick"] == {"0", "5", "10", "15"}
