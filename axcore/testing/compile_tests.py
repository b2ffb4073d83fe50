"""Runs the tests marked `compile`, each target in a process of its own.

    python -m axcore.testing.compile_tests [--all] PATH...

Compilers keep state of the chip that they compile for, so one process compiles for one target. As
many are at work as there are processors. A target whose compiler is not installed fails; none is
passed over. A test whose receipt holds (see `axcore.testing.receipts`) does not run again, but with
`--all`; the receipts of tests that pass are written again.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest

from axcore.aot.targets import compile_environment, find_aot_target
from axcore.config.json_files import parse_json
from axcore.errors import AxcoreError
from axcore.plugins import Hardware
from axcore.testing.receipts import (
    Receipt,
    compiler_versions,
    digest_of_test,
    key_of,
    read_receipts,
    receipts_file,
    target_modules,
    write_receipts,
)


@attrs.frozen
class CompileTest:
    """A test that compiles, and the digest of what it depends on."""

    target: str
    file: Path
    nodeid: str
    digest: str

    @property
    def key(self) -> str:
        """Its name in receipts."""
        return key_of(self.file, self.nodeid)

    @property
    def receipts(self) -> Path:
        """Where its receipt lies."""
        return receipts_file(self.file, self.target)


class _Collected:
    """A plugin of pytest that notes the tests that compile."""

    def __init__(self) -> None:
        self.tests: list[CompileTest] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("compile"):
                test = CompileTest(marker.args[0], item.path, item.nodeid, digest_of_test(item))
                self.tests.append(test)


def tests_below(paths: Sequence[str]) -> list[CompileTest]:
    """Returns the tests below `paths` that compile.

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
    """Returns versions of a target's compiler; nothing where it is not installed."""
    try:
        return compiler_versions(target_modules(Hardware.parse(target)))
    except AxcoreError:
        return {}


def without_receipt(tests: Sequence[CompileTest]) -> list[CompileTest]:
    """Returns the tests of one target that have to run."""
    compilers = versions_for(tests[0].target)
    known = {file: read_receipts(file) for file in {test.receipts for test in tests}}
    return [
        test
        for test in tests
        if (receipt := known[test.receipts].get(test.key)) is None
        or not receipt.holds(test.digest, compilers)
    ]


@attrs.frozen
class Ran:
    """How the tests for one target ended.

    Args:
        code: The exit code.
        printed: What pytest said.
        seconds: How long it took.
        passed: What each test that passed recorded, by the test's key.
    """

    code: int
    printed: str
    seconds: float
    passed: Mapping[str, Mapping[str, Any]]


def run_target(target: str, tests: Sequence[CompileTest]) -> Ran:
    """Runs tests for one target in a fresh process; without a compiler, says so and fails."""
    began = time.monotonic()
    passed: dict[str, Mapping[str, Any]] = {}
    try:
        code, printed = _run(target, tests, passed)
    except AxcoreError as error:
        code, printed = 1, f"{error}\n"
    return Ran(code, printed, time.monotonic() - began, passed)


def _run(
    target: str, tests: Sequence[CompileTest], passed: dict[str, Mapping[str, Any]]
) -> tuple[int, str]:
    hardware = Hardware.parse(target)
    environment = compile_environment(find_aot_target(hardware), hardware)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.jsonl"
        options = ["-m", "compile", "--compile-for", target, "--outcomes", str(outcomes)]
        names = [str(test.file) + test.nodeid[test.nodeid.index("::") :] for test in tests]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *names],
            env=dict(environment),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = outcomes.read_text(encoding="utf-8").splitlines() if outcomes.exists() else []
    for nodeid, recorded in map(parse_json, lines):
        passed[Path(nodeid.partition("::")[0]).name + nodeid[nodeid.index("::") :]] = recorded
    return done.returncode, done.stdout


def keep_receipts(
    tests: Sequence[CompileTest], ran: Sequence[CompileTest], passed: Mapping[str, Any]
) -> None:
    """Writes the receipts of one target: those that held, and those of tests that passed now."""
    compilers = versions_for(tests[0].target)
    for file in {test.receipts for test in ran}:
        here = [test for test in tests if test.receipts == file]
        names = {test.file.name for test in here}
        known = read_receipts(file)
        kept = {  # of files that this run was not about
            key: one
            for key, one in known.items()
            if key.partition("::")[0] not in names and one.compilers == compilers
        }
        for test in here:
            if test.key in passed:
                kept[test.key] = Receipt(test.digest, compilers, measured=passed[test.key])
            elif test not in ran:
                kept[test.key] = known[test.key]
        write_receipts(file, compilers, kept)


def _by_target(tests: Sequence[CompileTest]) -> Iterator[tuple[str, list[CompileTest]]]:
    for target in sorted({test.target for test in tests}):
        yield target, [test for test in tests if test.target == target]


def main(arguments: Sequence[str]) -> int:
    """Runs every target's tests that have to run; returns 0 if all passed, else 1."""
    wants_all = "--all" in arguments
    targets = dict(_by_target(tests_below([one for one in arguments if one != "--all"])))
    to_run = {
        name: tests if wants_all else without_receipt(tests) for name, tests in targets.items()
    }
    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = {
            target: pool.submit(run_target, target, tests)
            for target, tests in sorted(to_run.items(), key=lambda one: -len(one[1]))
            if tests
        }
        for target, running in started.items():
            ran = running.result()
            keep_receipts(targets[target], to_run[target], ran.passed)
            print(f"== {target}: {len(to_run[target])} tests, {ran.seconds:.0f} s\n{ran.printed}")
            sys.stdout.flush()
            if ran.code:
                failed.append(target)
    count = sum(map(len, targets.values())) - sum(map(len, to_run.values()))
    print(f"== {count} tests have receipts that hold")
    if failed:
        print(f"failed: {', '.join(sorted(failed))}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
