"""`quick_one_in(n)`: of a test's cases one in n always runs, and the others are slow."""

import collections

import pytest

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
