"""Prints at the end how many cases of a suite ended as they should, `plugins named: 80 of 80`.

A test calls `count`; what the tests of one suite count is added up, in whichever process they ran.
"""

from collections import Counter
from collections.abc import Iterator

import pytest

_COUNTED = "counted"
_pending: list[tuple[str, int, int]] = []


def count(suite: str, done: int, of: int) -> None:
    """Adds to what is printed of a suite; call it before the assertion that may fail.

    Args:
        suite: What is counted, with what should become of it, such as "broken plugins named".
        done: How many cases of the running test ended so.
        of: How many there are.
    """
    _pending.append((suite, done, of))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _pending.clear()
    try:
        return (yield)
    finally:  # reports carry properties from the workers of xdist to the process that prints
        kept = [one for one in item.user_properties if one[0] != _COUNTED]  # not of a try before
        item.user_properties[:] = [*kept, *((_COUNTED, one) for one in _pending)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ended = [
        report
        for outcome in ("passed", "failed")  # a rerun is counted by its last try alone
        for report in terminalreporter.stats.get(outcome, ())
        if getattr(report, "when", "") == "call"
    ]
    done, of = Counter[str](), Counter[str]()
    for report in ended:
        for name, counted in report.user_properties:
            if name == _COUNTED:
                suite, one_done, one_of = counted
                done[suite] += one_done
                of[suite] += one_of
    for suite in sorted(of):
        terminalreporter.write_line(f"{suite}: {done[suite]} of {of[suite]}")
