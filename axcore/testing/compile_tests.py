"""Runs the tests marked `compile`, each target in a process of its own.

    python -m axcore.testing.compile_tests [--all] [--target TARGET] PATH...

Compilers keep state of the chip that they compile for, so one process compiles for one target. As
many are at work as there are processors. A target whose compiler is not installed fails; none is
passed over. A test whose receipt holds (see `axcore.testing.receipts`) does not run again, but with
`--all`; the receipts of tests that pass are written again.

Where sources have changed, tests run up to lowering first. Those that lower to the programs of
their receipts are done, and their receipts renewed; the others run once more, and compile.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest

from axcore.aot.targets import compile_environment, find_aot_target
from axcore.config.json_files import parse_json
from axcore.errors import AxcoreError
from axcore.plugins import Hardware, Kernel
from axcore.testing.receipts import (
    Receipt,
    compiler_versions,
    digest_of,
    kernel_of_test,
    key_of,
    own_digest_of,
    read_receipts,
    receipt_of,
    receipts_file,
    target_modules,
    write_receipts,
)


@attrs.frozen
class CompileTest:
    """A test that compiles, and the digests of what it depends on and of its own code."""

    target: str
    file: Path
    nodeid: str
    digest: str
    own_digest: str

    @property
    def key(self) -> str:
        """Its name in receipts."""
        return key_of(self.file, self.nodeid)

    @property
    def receipts(self) -> Path:
        """Where its receipt is."""
        return receipts_file(self.file, self.target)


class _Collected:
    """A plugin of pytest that notes the tests that compile."""

    def __init__(self) -> None:
        self.tests: list[CompileTest] = []
        self._digests = functools.cache(_digests)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("compile"):
                digests = self._digests(item.path, kernel_of_test(item))
                self.tests.append(CompileTest(marker.args[0], item.path, item.nodeid, *digests))


def _digests(file: Path, kernel: Kernel | None) -> tuple[str, str]:
    return digest_of(file, kernel), own_digest_of(file, kernel)


def tests_below(paths: Sequence[str]) -> list[CompileTest]:
    """Return the tests below `paths` that compile.

    Raises:
        SystemExit: pytest could not collect them.
    """
    collected = _Collected()
    quietly = ("-qq", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    command = ["--collect-only", *quietly, "-m", "compile", *paths]
    code = pytest.main(command, plugins=[collected])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"no test marked compile was found below {' '.join(paths)}")
    return collected.tests


def versions_for(target: str) -> Mapping[str, str]:
    """Return versions of a target's compiler; nothing where it is not installed."""
    try:
        return compiler_versions(target_modules(Hardware.parse(target)))
    except AxcoreError:
        return {}


def without_receipt(tests: Sequence[CompileTest]) -> list[CompileTest]:
    """Return the tests of one target that have to run."""
    compilers = versions_for(tests[0].target)
    known = {file: read_receipts(file) for file in {test.receipts for test in tests}}
    return [
        test
        for test in tests
        if (receipt := receipt_of(known[test.receipts], test.key)) is None
        or not receipt.holds(test.digest, compilers)
    ]


@attrs.frozen
class Outcome:
    """What a test did.

    Args:
        recorded: What it recorded, memory for example.
        programs: Digests of the programs that it compiled, in order.
    """

    recorded: Mapping[str, Any]
    programs: Sequence[str]


@attrs.frozen
class Ran:
    """How the tests for one target ended.

    Args:
        code: The exit code.
        printed: What pytest said.
        seconds: How long it took.
        outcomes: Of each test that passed, by its key; of every test, if they were only lowered.
    """

    code: int
    printed: str
    seconds: float
    outcomes: Mapping[str, Outcome]


def run_target(target: str, tests: Sequence[CompileTest], *, only_lower: bool = False) -> Ran:
    """Run tests for one target in a fresh process; without a compiler, says so and fails."""
    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    try:
        code, printed = _run(target, tests, outcomes, only_lower=only_lower)
    except AxcoreError as error:
        code, printed = 1, f"{error}\n"
    return Ran(code, printed, time.monotonic() - began, outcomes)


def _run(
    target: str, tests: Sequence[CompileTest], outcomes: dict[str, Outcome], *, only_lower: bool
) -> tuple[int, str]:
    hardware = Hardware.parse(target)
    environment = compile_environment(find_aot_target(hardware), hardware)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.jsonl"
        options = ["-m", "compile", "--compile-for", target, "--outcomes", str(file)]
        options += ["--only-lower"] if only_lower else []
        names = [str(test.file) + test.nodeid[test.nodeid.index("::") :] for test in tests]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *names],
            env=dict(environment),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for nodeid, recorded, programs in map(parse_json, lines):
        outcomes[key_of(Path(nodeid.partition("::")[0]), nodeid)] = Outcome(recorded, programs)
    return done.returncode, done.stdout


def held_by_programs(target: str, tests: Sequence[CompileTest]) -> Mapping[CompileTest, Receipt]:
    """Return renewed receipts of those tests that lower to the programs of their old ones.

    Nothing is compiled. A test that fails on the way lowered less than its receipt has, so that it
    is not among them.
    """
    compilers = versions_for(target)
    old = {test: receipt_of(read_receipts(test.receipts), test.key) for test in tests}
    maybe = {
        test: receipt
        for test, receipt in old.items()
        if receipt is not None and receipt.may_hold(test.own_digest, compilers)
    }
    if not maybe:
        return {}
    lowered = run_target(target, list(maybe), only_lower=True).outcomes
    return {
        test: attrs.evolve(receipt, digest=test.digest)
        for test, receipt in maybe.items()
        if test.key in lowered and tuple(lowered[test.key].programs) == receipt.programs
    }


@attrs.frozen
class Checked:
    """How the tests of one target that had no receipt of their sources ended.

    Args:
        renewed: Receipts of tests that lowered to the programs of their old receipts.
        lowering_s: How long it took to find out.
        left: The tests that compiled.
        ran: How they ended; None where there were none.
    """

    renewed: Mapping[CompileTest, Receipt]
    lowering_s: float
    left: Sequence[CompileTest]
    ran: Ran | None


def check_target(target: str, tests: Sequence[CompileTest], *, compiles_all: bool) -> Checked:
    """Compile for one target what has to be compiled.

    Args:
        target: The target's name.
        tests: The tests that have no receipt of their sources.
        compiles_all: Take no receipt of programs either.
    """
    began = time.monotonic()
    renewed = {} if compiles_all else held_by_programs(target, tests)
    lowering_s = time.monotonic() - began
    left = [test for test in tests if test not in renewed]
    return Checked(renewed, lowering_s, left, run_target(target, left) if left else None)


def keep_receipts(
    tests: Sequence[CompileTest],
    ran: Sequence[CompileTest],
    passed: Mapping[str, Outcome],
    renewed: Mapping[CompileTest, Receipt] = MappingProxyType({}),
) -> None:
    """Write the receipts of one target.

    Args:
        tests: All its tests. The receipts of those that are not mentioned below held, and stay.
        ran: Those that compiled.
        passed: Their outcomes, by key; a test that failed has none, and leaves no receipt.
        renewed: Receipts of those that were only lowered.
    """
    compilers = versions_for(tests[0].target)
    for file in {test.receipts for test in (*ran, *renewed)}:
        here = [test for test in tests if test.receipts == file]
        names = {test.file.name for test in here}
        known = read_receipts(file)
        kept = {  # of files that this run was not about
            key: one
            for key, one in known.items()
            if (name := key.partition("::")[0]) not in names
            and one.compilers == compilers
            and (file.parents[1] / name).exists()
        }
        for test in here:
            if test.key in passed:
                kept[test.key] = _receipt(test, passed[test.key], compilers)
            elif test not in ran and (held := renewed.get(test) or receipt_of(known, test.key)):
                kept[test.key] = held
        write_receipts(file, compilers, kept)


def _receipt(test: CompileTest, outcome: Outcome, compilers: Mapping[str, str]) -> Receipt:
    return Receipt(
        test.digest,
        compilers,
        own_digest=test.own_digest,
        programs=outcome.programs,
        measured=outcome.recorded,
    )


def _by_target(tests: Sequence[CompileTest]) -> Iterator[tuple[str, list[CompileTest]]]:
    for target in sorted({test.target for test in tests}):
        yield target, [test for test in tests if test.target == target]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m axcore.testing.compile_tests")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="tests, or folders of tests")
    parser.add_argument("--all", action="store_true", help="compile all, and take no receipt")
    parser.add_argument("--target", action="append", help="only tests of this target; repeatable")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run every target's tests that have to run; returns 0 if all passed, else 1."""
    asked = _parser().parse_args(arguments)
    targets = {
        target: tests
        for target, tests in _by_target(tests_below(asked.paths))
        if asked.target is None or target in asked.target
    }
    to_run = {
        name: tests if asked.all else without_receipt(tests) for name, tests in targets.items()
    }
    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = {
            target: pool.submit(check_target, target, tests, compiles_all=asked.all)
            for target, tests in sorted(to_run.items(), key=lambda one: -len(one[1]))
            if tests
        }
        for target, running in started.items():
            checked = running.result()
            passed = checked.ran.outcomes if checked.ran else {}
            keep_receipts(targets[target], checked.left, passed, checked.renewed)
            _print(target, checked)
            if checked.ran and checked.ran.code:
                failed.append(target)
    count = sum(map(len, targets.values())) - sum(map(len, to_run.values()))
    print(f"== {count} tests have receipts that hold")
    if failed:
        print(f"failed: {', '.join(sorted(failed))}", file=sys.stderr)
    return 1 if failed else 0


def _print(target: str, checked: Checked) -> None:
    if checked.renewed:
        count, seconds = len(checked.renewed), checked.lowering_s
        print(
            f"== {target}: {count} tests lower to the programs of their receipts, {seconds:.0f} s"
        )
    if checked.ran:
        print(f"== {target}: {len(checked.left)} tests, {checked.ran.seconds:.0f} s")
        print(checked.ran.printed)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
