"""Lists each unmarked test that takes over 5 s of processor time, and fails one over 60 s.

What counts is the processor time of this process and of the children that it waited for, not the
time that passed. Setup, which a fixture of a module makes once, counts apart from the test's own
call. The same instructions take several times as long on a slower processor, or where other work
shares its caches and execution units; so a test over the limit is named at the end, and only one
far over it fails the run.
"""

import resource
from collections.abc import Iterator

import pytest

EXEMPT = ("slow", "long", "gate", "parity", "compile")
HINT = "make it cheaper, or mark it slow where what it claims needs as much"
FAILS_AT = 12.0
"""How far over the limit a test fails."""

_OVER = "over the time limit"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--most-cpu-s", type=float, default=5.0, help="limit of an unmarked test")


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
    if spent > FAILS_AT * most:
        pytest.fail(text)
    item.user_properties.append((_OVER, text))
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
        if name == _OVER
    }
    if listed:
        terminalreporter.section(f"{len(listed)} {_OVER}")
        terminalreporter.write_line("\n".join(sorted(listed)))
