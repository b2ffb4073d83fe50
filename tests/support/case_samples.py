"""Which cases of a test with many run in `make test`, which in `make test-slow`, and which rest.

`quick_one_in(n)` keeps one case in n unmarked, and makes the others slow. Of the slow cases of one
test a twelfth, and at least four, stay for `make test-slow`; the others are long, and only
`make test-long` runs them. A case's name decides, so a new one moves no other.
"""

import collections
import zlib

import pytest

_LEAST, _ONE_IN = 4, 12
_SEEN = pytest.StashKey[collections.Counter]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SEEN] = collections.Counter()
    config.addinivalue_line("markers", "quick_one_in(n): all cases but each n-th are slow")


def pytest_itemcollected(item: pytest.Item) -> None:
    marker = item.get_closest_marker("quick_one_in")
    if marker is None:
        return
    seen, function = item.config.stash[_SEEN], item.nodeid.partition("[")[0]
    if seen[function] % marker.args[0]:
        item.add_marker(pytest.mark.slow)
    seen[function] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            slow[item.nodeid.partition("[")[0]].append(item)
    for cases in slow.values():
        cases.sort(key=lambda case: zlib.crc32(case.nodeid.encode()))
        for case in cases[max(_LEAST, len(cases) // _ONE_IN) :]:
            case.add_marker(pytest.mark.long)
