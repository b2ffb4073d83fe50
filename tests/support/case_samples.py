"""Which cases of a test with many run in `make test`, which in `make test-slow`, and which rest.

`quick_one_in(n)` keeps one case in n unmarked, and makes the others slow. Of the slow cases of one
test a sixteenth and at least two stay for `make test-slow`, and of those that compare kernels with
a reference one of each kernel; the others are long, and only `make test-long` runs them. A case's
name decides, so a new one moves no other. `every_case` keeps all, where they are claims of their
own and no sweep.

`--part 2/3` runs the second of three parts of whatever would run, also by the names of cases.
"""

import collections
import zlib

import pytest

_LEAST, _ONE_IN = 2, 16
_SEEN = pytest.StashKey[collections.Counter]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=_part, default=(1, 1), help="K/N: the Kth of N parts")


def _part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(f"expected K/N with K from 1 to N, got {text}")
    return part, parts


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SEEN] = collections.Counter()
    config.addinivalue_line("markers", "quick_one_in(n): all cases but each n-th are slow")
    config.addinivalue_line("markers", "every_case: none of its slow cases is long")


def pytest_itemcollected(item: pytest.Item) -> None:
    marker = item.get_closest_marker("quick_one_in")
    if marker is None:
        return
    seen, function = item.config.stash[_SEEN], item.nodeid.partition("[")[0]
    if seen[function] % marker.args[0]:
        item.add_marker(pytest.mark.slow)
    seen[function] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = config.getoption("part")
    slow = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("every_case"):
            slow[item.nodeid.partition("[")[0]].append(item)
    for cases in slow.values():
        cases.sort(key=lambda case: zlib.crc32(case.nodeid.encode()))
        num_kept = max(_LEAST, len(cases) // _ONE_IN)
        kernels = {_kernel(case) for case in cases[:num_kept]}
        for case in cases[num_kept:]:
            if _kernel(case) in kernels:
                case.add_marker(pytest.mark.long)
            kernels.add(_kernel(case))
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == part - 1]


def _kernel(case: pytest.Item) -> str | None:
    """Returns the `op/kernel` that a case of a `KernelSuite` compares with the reference."""
    if "equals_the_reference" not in case.nodeid:
        return None
    first = case.nodeid.partition("[")[2].partition("-")[0]
    return first if "/" in first else None
