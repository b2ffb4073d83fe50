"""Keeps a process of the suite below 2 GiB, and starts as many as cores and memory are for.

JAX keeps each program that it compiled, and with it what was traced: several GiB in thousands of
tests. Those of tests that are over are freed, between two files only and only where it is needed,
since it costs the tests that follow some programs of their own, which they read from the session's
cache on disk.
"""

import ctypes
import gc
import os
import resource
import sys
from pathlib import Path

import jax
import pytest

CLEARS_AT_MIB = 1400
"""Some files need half a GiB more for what they compile."""

LARGEST_MIB = 2048


def available_mib() -> float:
    """Returns how much memory is free for processes; endless where the system doesn't say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("MemAvailable"))


def num_workers(num_cores: int, memory_mib: float) -> int:
    """Returns how many processes run tests: one more than cores, as some wait for others.

    A gibibyte stays for what tests start.
    """
    return int(max(1, min(num_cores + 1, (memory_mib - 1024) // LARGEST_MIB)))


def pytest_xdist_auto_num_workers() -> int:
    """Returns what `-n auto` means."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return num_workers(cores, available_mib())


def resident_mib() -> float:
    """Returns how much memory this process holds; where the system doesn't say, the most ever."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / 2 ** (20 if sys.platform == "darwin" else 10)
    return pages * resource.getpagesize() / 2**20


def pytest_collection_finish(session: pytest.Session) -> None:
    # What was imported stays: looking through it again and again takes seconds in a large process.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path == item.path or resident_mib() < CLEARS_AT_MIB:
        return
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed
