"""Runs the tests marked `compile`, each target in a process of its own.

    python -m axcore.testing.compile_tests PATH...

Compilers keep state of the chip that they compile for, so one process compiles for one target. A
target whose compiler is not installed fails; none is passed over.
"""

import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from axcore.aot.targets import compile_environment, find_aot_target
from axcore.errors import AxcoreError
from axcore.plugins import Hardware


class _Targets:
    """A plugin of pytest that notes for which targets there are tests."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("compile"):
                self.found[marker.args[0]] = self.found.get(marker.args[0], 0) + 1


def targets_of(paths: Sequence[str]) -> dict[str, int]:
    """Returns how many tests below `paths` compile for each target.

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


def run_target(target: str, paths: Sequence[str]) -> int:
    """Returns the exit code of the tests for one target, run in a fresh process.

    Raises:
        PluginError: The compiler is not installed, or no plugin brings one.
    """
    hardware = Hardware.parse(target)
    environment = compile_environment(find_aot_target(hardware), hardware)
    command = [sys.executable, "-m", "pytest", "-m", "compile", "--compile-for", target, *paths]
    return subprocess.run(command, env=dict(environment), check=False).returncode


def main(paths: Sequence[str]) -> int:
    """Runs every target's tests; returns 0 if all passed, else 1."""
    failed = []
    for target, count in sorted(targets_of(paths).items()):
        print(f"== {target}: {count} tests", flush=True)
        began = time.monotonic()
        try:
            code = run_target(target, paths)
        except AxcoreError as error:
            print(error, file=sys.stderr)
            code = 1
        if code:
            failed.append(target)
        print(f"== {target}: {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
