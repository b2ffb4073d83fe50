"""Runs the tests marked `compile`, each target in a process of its own.

    python -m axcore.testing.compile_tests PATH...

Compilers keep state of the chip that they compile for, so one process compiles for one target. As
many are at work as there are processors. A target whose compiler is not installed fails; none is
passed over.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from axcore.aot.targets import compile_environment, find_aot_target
from axcore.errors import AxcoreError
from axcore.plugins import Hardware


class _Targets:
    """A plugin of pytest that notes for which targets there are tests, and in which files."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("compile"):
                self.found.setdefault(marker.args[0], []).append(str(item.path))


def targets_of(paths: Sequence[str]) -> dict[str, list[str]]:
    """Returns for each target the file of each test below `paths` that compiles for it.

    Raises:
        SystemExit: pytest could not collect them.
    """
    targets = _Targets()
    quietly = ("-qq", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    command = ["--collect-only", *quietly, "-m", "compile", *paths]
    code = pytest.main(command, plugins=[targets])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"no test marked compile was found below {' '.join(paths)}")
    return targets.found


@attrs.frozen
class Ran:
    """How the tests for one target ended: the exit code, what was printed, and the seconds."""

    code: int
    printed: str
    seconds: float


def run_target(target: str, paths: Sequence[str]) -> Ran:
    """Runs the tests for one target in a fresh process; without a compiler, says so and fails."""
    began = time.monotonic()
    try:
        code, printed = _run(target, paths)
    except AxcoreError as error:
        code, printed = 1, f"{error}\n"
    return Ran(code, printed, time.monotonic() - began)


def _run(target: str, paths: Sequence[str]) -> tuple[int, str]:
    hardware = Hardware.parse(target)
    environment = compile_environment(find_aot_target(hardware), hardware)
    command = [sys.executable, "-m", "pytest", "-m", "compile", "--compile-for", target, *paths]
    done = subprocess.run(
        command,
        env=dict(environment),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def main(paths: Sequence[str]) -> int:
    """Runs every target's tests; returns 0 if all passed, else 1."""
    targets = dict(sorted(targets_of(paths).items(), key=lambda one: -len(one[1])))
    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = {
            target: pool.submit(run_target, target, sorted(set(files)))
            for target, files in targets.items()
        }
        for target, running in started.items():
            ran = running.result()
            print(f"== {target}: {len(targets[target])} tests, {ran.seconds:.0f} s\n{ran.printed}")
            sys.stdout.flush()
            if ran.code:
                failed.append(target)
    if failed:
        print(f"failed: {', '.join(sorted(failed))}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
