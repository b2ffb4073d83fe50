"""Which programs each test compiles, and whether it passed: a plugin of pytest that writes it down.

It watches `jax.stages.Lowered.compile`, where lowering ends and compiling begins. With
`only_lowers` nothing is compiled there: a test gets a `NotCompiled`, and is skipped when it looks
into that. So of a test that lowers all programs before it looks into one, all are seen.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from axcore._jax_compat import forget_compiled, handing_over_programs
from axcore.testing.programs import program_digest


class _OnlyLoweredError(Exception):
    """A program was handed to the compiler, which is not to compile it."""


class NotCompiled:
    """Replaces a compiled program where nothing is compiled; skips a test that looks into it."""

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"only lowered; the test asks for {name} of what it compiles")

    def __call__(self, *inputs: Any) -> Any:
        """Skip the test, which wants to run the program."""
        pytest.skip("only lowered; the test runs what it compiles")


class CompileOutcomes:
    """Writes a line for each test that passed: its name, what it recorded, its programs.

    Args:
        file: Where to.
        only_lowers: Compile nothing, and write a line for every test, whatever became of it.
    """

    def __init__(self, file: Path, *, only_lowers: bool) -> None:
        self.file = file
        self.only_lowers = only_lowers
        self._programs: list[str] = []
        self._passed: list[pytest.TestReport] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Watch a test with its fixtures."""
        self._programs, self._passed = [], []
        with pytest.MonkeyPatch.context() as patch:
            self._watch(patch)
            result = yield
        if self._passed or self.only_lowers:
            recorded = {name: value for one in self._passed for name, value in one.user_properties}
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([item.nodeid, recorded, self._programs]) + "\n")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Refuse a fixture whose programs would be seen in the first of its tests alone."""
        before = len(self._programs)
        result = yield
        if fixturedef.scope != "function" and len(self._programs) > before:
            pytest.fail(
                f"the fixture {fixturedef.argname} compiles for more than one test, whose receipts "
                f"would miss changes of its program; make its scope 'function', "
                f"not {fixturedef.scope!r}"
            )
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test passed."""
        if report.when == "call" and report.passed:
            self._passed.append(report)

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        import jax

        compile_now = jax.stages.Lowered.compile

        @functools.wraps(compile_now)
        def compile_and_note(lowered: Any, *args: Any, **options: Any) -> Any:
            forget_compiled(lowered)  # so that a test's programs are the same in any company
            try:
                with handing_over_programs(self._see):
                    return compile_now(lowered, *args, **options)
            except _OnlyLoweredError:
                return NotCompiled()

        patch.setattr(jax.stages.Lowered, "compile", compile_and_note)

    def _see(self, module: Any, options: bytes) -> None:
        self._programs.append(program_digest(module, options))
        if self.only_lowers:
            raise _OnlyLoweredError
