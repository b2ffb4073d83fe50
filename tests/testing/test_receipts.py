"""Receipts of compilation: they hold until something changes that what was compiled depends on."""

import os
import subprocess
import sys

import pytest

from axcore.plugins import Kernel, Ref, plugin_host
from axcore.testing.compile_tests import CompileTest, Outcome, keep_receipts, versions_for
from axcore.testing.receipt_sources import imported_files, op_files
from axcore.testing.receipts import (
    AXCORE,
    NOT_COMPILED,
    Receipt,
    compiled_files,
    digest_of,
    own_digest_of,
    read_receipts,
    receipt_of,
    receipts_file,
    write_receipts,
)

PASSED = Outcome({}, ["e"])
PLUGIN = """
from axcore.plugins import Kernel, Ref, hook

@hook.kernels
def kernels():
    for name in ("one", "other"):
        yield Kernel(op="rms_norm", name=name, forward=Ref(f"axl_acme.{name}:norm"), priority=100,
                     is_differentiable=True, partitioned_by="compiler")
"""
ONE = """
from axl_acme.shared import norm_of

def norm(*arguments):
    return norm_of(*arguments)
"""
SHARED = "from axcore.ops.rms_norm.kernels import rms_norm_reference as norm_of\n"
HALVED = f"""
{SHARED}
whole = norm_of

def norm_of(inputs, spec):
    return 0.5 * whole(inputs, spec)
"""
FILES = {"one.py": ONE, "shared.py": SHARED, "other.py": SHARED.replace("norm_of", "norm")}
SUITE = """
from axcore.testing import CompileSuite
from axcore.testing.contracts import RMS_NORM

class TestCompile(CompileSuite):
    plugin = "axl-acme"
    targets = ("cpu-2",)
    calls = {"one": ("multiply", 1), "other": ("multiply", 1)}

    def cases(self, kernel):
        return RMS_NORM.cases[:1]
"""


@pytest.fixture
def acme(make_dist, tmp_path):
    """A plugin with two kernels, one of which imports a file of its own; and a file of tests."""
    package = make_dist("axl-acme", PLUGIN, files=FILES)
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_acme.py").write_text(SUITE)
    return package, tests / "test_acme.py"


def edit(file, text="edited = True"):
    file.write_text(f"{file.read_text()}{text}\n")


def kernel_of(op):
    return Kernel(op=op, name="one", forward=Ref("axl_gpu.plugin:x"), priority=100)


@pytest.mark.parametrize(
    ("edited", "changed"),
    [
        ("one.py", {"one"}),
        ("shared.py", {"one"}),  # what a kernel imports is a part of it
        ("other.py", {"other"}),
        ("plugin.py", set()),
    ],
)
@pytest.mark.quick_one_in(8)
def test_a_digest_changes_with_what_the_kernel_is_made_of(acme, edited, changed):
    package, tests = acme
    kernels = [one for one in plugin_host().records(Kernel) if one.plugin == "axl-acme"]
    before = {kernel.name: digest_of(tests, kernel) for kernel in kernels}
    assert len(set(before.values())) == 2
    edit(package / edited)
    after = {kernel.name: digest_of(tests, kernel) for kernel in kernels}
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.slow
def test_a_digest_changes_with_the_tests_and_with_what_they_import_from_beside_them(tmp_path):
    kernel = kernel_of("rms_norm")
    file, helper = tmp_path / "test_it.py", tmp_path / "helper.py"
    file.write_text("import helper\n")
    helper.write_text("")
    digests = [digest_of(file, kernel)]
    for changed in (file, helper):
        edit(changed)
        digests.append(digest_of(file, kernel))
    assert len(set(digests)) == 3
    (tmp_path / "unrelated.py").write_text("")
    assert digest_of(file, kernel) == digests[-1]


@pytest.mark.slow
def test_a_step_is_made_of_no_file_that_a_digest_leaves_out():
    lazy = {AXCORE / "__init__.py", *AXCORE.glob("*/registrations.py")}  # they name all packages
    modules = {
        ".".join(file.relative_to(AXCORE.parent).with_suffix("").parts): file
        for file in AXCORE.rglob("*.py")
        if file not in lazy
    }
    modules = {name.removesuffix(".__init__"): file for name, file in modules.items()}
    reached = imported_files((AXCORE / "aot").rglob("*.py"), modules)
    assert {file.relative_to(AXCORE).parts[0] for file in reached}.isdisjoint(NOT_COMPILED)
    assert AXCORE / "trainer" / "step.py" in reached & compiled_files()


def test_a_kernel_is_compiled_with_its_op_and_what_that_imports_of_others():
    parts = {
        op: {file.relative_to(AXCORE / "ops").parts[0] for file in op_files(kernel_of(op), ())}
        for op in ("rms_norm", "decode_attention", "new_op")
    }
    dispatch = {"op.py", "dispatch.py", "plan.py"}
    assert parts["rms_norm"] == dispatch | {"rms_norm", "comparison.py", "contract.py"}
    assert parts["decode_attention"] >= dispatch | {"decode_attention", "attention"}
    assert "cross_entropy" not in parts["decode_attention"]
    assert parts["new_op"] > parts["rms_norm"] | {"cross_entropy", "__init__.py"}


@pytest.mark.slow
def test_a_digest_is_the_same_whatever_comments_and_docstrings_say(tmp_path):
    kernel = kernel_of("rms_norm")
    file = tmp_path / "test_it.py"
    file.write_text('"""What."""\ndef test(): """What."""; return "text"\n')
    before = digest_of(file, kernel)
    file.write_text('"""Why."""\n# Why.\ndef test():\n    """Why."""\n    return "text"\n')
    assert digest_of(file, kernel) == before
    file.write_text('def test():\n    return "another text"\n')
    assert digest_of(file, kernel) != before


def test_a_receipt_holds_for_the_same_sources_and_compilers(tmp_path):
    file = receipts_file(tmp_path / "test_it.py", "cpu-2")
    assert file == tmp_path / "compile_receipts/cpu-2.json"
    assert read_receipts(file) == {}
    made = Receipt(
        "abc", {"jax": "1"}, own_digest="d", programs=["e"], measured={"temporary_bytes": 8}
    )
    write_receipts(file, made.compilers, {"test_it.py::test": made})
    (kept,) = read_receipts(file).values()
    assert kept == made
    assert kept.holds("abc", {"jax": "1"})
    assert not kept.holds("abd", {"jax": "1"})
    assert not kept.holds("abc", {"jax": "2"})


def test_a_receipt_may_hold_for_the_same_programs_of_the_same_test_and_compilers():
    made = Receipt("abc", {"jax": "1"}, own_digest="d", programs=["e"])
    assert made.may_hold("d", {"jax": "1"})
    assert not made.may_hold("x", {"jax": "1"})
    assert not made.may_hold("d", {"jax": "2"})
    assert not Receipt("abc", {"jax": "1"}, own_digest="d").may_hold("d", {"jax": "1"})


@pytest.mark.slow
def test_a_tests_own_code_is_its_file_what_is_beside_it_and_what_reads_programs(tmp_path):
    file, helper, data = (tmp_path / name for name in ("test_it.py", "helper.py", "helper.json"))
    file.write_text("import helper\nassert helper.LIMIT\n")
    helper.write_text("LIMIT = 2\n")
    data.write_text("{}")
    digests = [own_digest_of(file, None)]
    data.write_text('{"budget": 1}')
    digests.append(own_digest_of(file, None))
    for changed, text in (
        (helper, "LIMIT = 1"),
        (file, "from axcore.aot.hlo.program import parse_program\nassert parse_program"),
    ):
        edit(changed, text)
        digests.append(own_digest_of(file, None))
    edit(file, "# a comment\nimport os")
    edit(helper, "UNUSED = 1")
    assert own_digest_of(file, None) == digests[-1]
    helper.rename(tmp_path / "renamed.py")
    data.rename(tmp_path / "renamed.json")
    file.write_text(file.read_text().replace("import helper\n", "import renamed as helper\n"))
    assert own_digest_of(file, None) == digests[-1]
    digests.append(own_digest_of(file, kernel_of("rms_norm")))  # with the suite's assertions
    assert len(set(digests)) == 5


def test_a_receipt_is_found_after_its_tests_file_was_renamed():
    made = Receipt("abc", {"jax": "1"})
    assert receipt_of({"test_old.py::test_it[1]": made}, "test_new.py::test_it[1]") == made
    assert receipt_of({"test_old.py::test_it[1]": made}, "test_new.py::test_it[2]") is None
    two = {"test_a.py::test_it": made, "test_b.py::test_it": made}
    assert receipt_of(two, "test_new.py::test_it") is None


def test_receipts_of_files_that_a_run_was_not_about_are_kept_but_for_other_compilers(tmp_path):
    one, other = (
        CompileTest("cpu-2", tmp_path / name, f"{name}::test", "abc", "d")
        for name in ("test_one.py", "test_other.py")
    )
    for test in (one, other):
        test.file.touch()
    keep_receipts([one], [one], {one.key: PASSED})
    keep_receipts([other], [other], {other.key: PASSED})
    assert set(read_receipts(one.receipts)) == {one.key, other.key}
    keep_receipts([other], [other], {})  # it failed
    assert set(read_receipts(one.receipts)) == {one.key}
    write_receipts(one.receipts, {"jax": "0"}, {one.key: Receipt("abc", {"jax": "0"})})
    keep_receipts([other], [other], {other.key: PASSED})
    (kept,) = read_receipts(one.receipts).values()
    assert kept.compilers == versions_for("cpu-2")


def compile_tests(tests, *options):
    ran = subprocess.run(
        [sys.executable, "-m", "axcore.testing.compile_tests", *options, str(tests)],
        cwd=tests.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [line for line in ran.stdout.splitlines() if line.startswith("== ")]


@pytest.mark.slow
def test_an_edited_kernel_is_compiled_again_and_no_other(acme):
    package, tests = acme
    assert compile_tests(tests)[0].startswith("== cpu-2: 2 tests, ")
    (receipt, *_) = read_receipts(receipts_file(tests, "cpu-2")).values()
    assert receipt.verdict == "passed"
    assert receipt.measured["temporary_bytes"] >= 0
    (package / "shared.py").write_text(HALVED)
    ran, held = compile_tests(tests)
    assert ran.startswith("== cpu-2: 1 tests, ")
    assert held == "== 1 tests have receipts that hold"
    assert compile_tests(tests) == ["== 2 tests have receipts that hold"]
    assert compile_tests(tests, "--all")[0].startswith("== cpu-2: 2 tests, ")


@pytest.mark.slow
def test_a_kernel_in_other_words_is_lowered_and_not_compiled(acme):
    package, tests = acme
    compile_tests(tests)
    before = read_receipts(receipts_file(tests, "cpu-2"))
    (package / "one.py").write_text(ONE.replace("norm_of", "rms").replace("rms(", "(rms)("))
    (package / "shared.py").write_text(SHARED.replace("norm_of", "rms"))
    lowered, held = compile_tests(tests)
    assert lowered.startswith("== cpu-2: 1 tests lower to the programs of their receipts, ")
    assert held == "== 1 tests have receipts that hold"
    after = read_receipts(receipts_file(tests, "cpu-2"))
    changed = [test for test in before if before[test] != after[test]]
    assert [after[test].programs for test in changed] == [before[test].programs for test in changed]
    assert compile_tests(tests) == ["== 2 tests have receipts that hold"]
    edit(tests, "# what the test says is the same")
    assert compile_tests(tests) == ["== 2 tests have receipts that hold"]
    edit(tests)
    assert compile_tests(tests)[0].startswith("== cpu-2: 2 tests, ")
