"""Tests that compile: run for the target asked for alone, each target in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.compile("cpu-2")
def test_two(compile_devices):
    assert len(compile_devices) == 2

@pytest.mark.compile("cpu-3")
def test_three(compile_devices):
    assert len(compile_devices) == 4

def test_other():
    pass
"""
PROGRAMS = """
import jax
import jax.numpy as jnp
import pytest

pytestmark = pytest.mark.compile("cpu-2")

def compiled(fn):
    return jax.jit(fn).lower(jnp.ones(3)).compile()

def test_two_programs(record_property):
    record_property("count", 2)
    one, other = compiled(lambda x: x + 1), compiled(lambda x: x + 2)
    assert one.as_text() != other.as_text()

def test_one_after_the_other():
    texts = [compiled(fn).as_text() for fn in (jnp.sin, jnp.cos)]
    assert len(set(texts)) == 2

def test_fails():
    assert compiled(jnp.sin) is None

@pytest.fixture(scope="module")
def shared():
    return compiled(jnp.sin)

def test_shares(shared):
    pass
"""
ACME = """
from axcore.plugins import *

@hook.hardware_families
def hardware_families():
    yield HardwareFamily(name="acme", hosts=(Hardware(family="acme", generation="x1", chips=4),),
                         detect=Ref("axl_acme.detect:detect"), summary="Acme")

@hook.aot_targets
def aot_targets():
    yield AotTarget(name="libacme", requires=requires(family="acme"), modules=("libacme",),
                    install="axl-acme[aot]", summary="Acme's compiler")
"""


def test_without_a_target_tests_that_compile_are_skipped(pytester):
    pytester.makepyfile(TESTS)
    ran = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs")
    ran.assert_outcomes(passed=1, skipped=2)
    ran.stdout.fnmatch_lines(["*compiles for cpu-2"])


def test_a_target_runs_its_own_tests_alone(pytester):
    pytester.makepyfile(TESTS)
    ran = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--compile-for", "cpu-2")
    ran.assert_outcomes(passed=1, deselected=2)


def outcomes(pytester, *options):
    file = pytester.path / "outcomes.jsonl"
    pytester.makepyfile(test_programs=PROGRAMS)
    options += ("-p", "no:cacheprovider", "--compile-for", "cpu-2", "--outcomes", str(file))
    pytester.runpytest_inprocess(*options)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    return {name.partition("::")[2]: (recorded, programs) for name, recorded, programs in lines}


def test_programs_are_seen_up_to_where_a_test_looks_into_what_was_only_lowered(pytester):
    compiled, lowered = outcomes(pytester), outcomes(pytester, "--only-lower")
    assert set(compiled) == {"test_two_programs", "test_one_after_the_other"}  # no shared fixture
    assert compiled["test_two_programs"][0] == {"count": 2}
    (_, two), (_, after) = compiled.values()
    assert len(set(two + after)) == 4
    assert {name: programs for name, (_, programs) in lowered.items()} == {
        "test_two_programs": two,
        "test_one_after_the_other": after[:1],
        "test_fails": after[:1],
        "test_shares": after[:1],
    }


@pytest.mark.slow
def test_each_target_runs_in_a_process_and_a_missing_compiler_fails(tmp_path, make_dist):
    make_dist("axl-acme", ACME)
    tests = '@pytest.mark.compile("acme-x1-4")\ndef test_acme(compile_devices):\n    pass\n'
    (tmp_path / "test_all.py").write_text(f"{TESTS}\n{tests}")
    path = os.pathsep.join(part for part in sys.path if part)
    ran = subprocess.run(
        [sys.executable, "-m", "axcore.testing.compile_tests", "test_all.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "== cpu-2: 1 tests, " in ran.stdout
    assert "assert 3 == 4" in ran.stdout
    assert "the compiler for acme-x1-4, libacme, is not installed" in ran.stdout
    assert ran.stderr.splitlines()[-1] == "failed: acme-x1-4, cpu-3"
