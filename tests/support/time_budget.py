"""Fails each unmarked test that takes more than 5 s of processor time.

What counts is the processor time of this process and of the children that it waited for, not the
time that passed: a machine with other work to do fails no test. Setup, which a fixture of a module
makes once, counts apart from the test's own call.
"""

import resource
from collections.abc import Iterator

import pytest

EXEMPT = ("slow", "gate", "compile")
HINT = "make it cheaper, or mark it slow where what it claims needs as much"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--most-cpu-s", type=float, default=5.0, help="limit of an unmarked test")


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _limited(item: pytest.Item, what: str) -> Iterator[None]:
    before = _cpu_s()
    result = yield
    spent, most = _cpu_s() - before, item.config.getoption("--most-cpu-s")
    if spent > most and not any(map(item.get_closest_marker, EXEMPT)):
        pytest.fail(f"{what} took {spent:.1f} s of processor time; {most} is the limit: {HINT}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _limited(item, "the test"))
