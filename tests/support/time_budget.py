"""Fails each unmarked test that takes more than 5 s of processor time.

What counts is the processor time of this process and of the children that it waited for, not the
time that passed. Setup, which a fixture of a module makes once, counts apart from the test's own
call. A machine with much other work makes the same instructions cost up to three times as much, so
there, by its load average, tests over the limit are listed at the end and fail nothing.
"""

import os
import resource
from collections.abc import Iterator

import pytest

EXEMPT = ("slow", "gate", "compile")
HINT = "make it cheaper, or mark it slow where what it claims needs as much"
_NOT_JUDGED = "over the time limit on a busy machine"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--most-cpu-s", type=float, default=5.0, help="limit of an unmarked test")
    busy = 1.5 * (os.cpu_count() or 1)
    parser.addoption("--busy-load", type=float, default=busy, help="load average of a busy machine")


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _limited(item: pytest.Item, what: str) -> Iterator[None]:
    before = _cpu_s()
    result = yield
    spent, most = _cpu_s() - before, item.config.getoption("--most-cpu-s")
    if spent <= most or any(map(item.get_closest_marker, EXEMPT)):
        return result
    text = f"{what} took {spent:.1f} s of processor time; {most} is the limit: {HINT}"
    if os.getloadavg()[0] <= item.config.getoption("--busy-load"):
        pytest.fail(text)
    item.user_properties.append((_NOT_JUDGED, text))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item, "the test"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [one for found in terminalreporter.stats.values() for one in found]
    listed = {
        f"{report.nodeid}: {text}"
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == _NOT_JUDGED
    }
    if listed:
        terminalreporter.section(f"{len(listed)} {_NOT_JUDGED}")
        terminalreporter.write_line("\n".join(sorted(listed)))
