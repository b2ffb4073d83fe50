"""Large pages: what is asked for, and that it changes no memory."""

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from axcore.hardware.large_pages import PAGE_BYTES, use_large_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system has no large pages")
ROLLUP = Path("/proc/self/smaps_rollup")


def large_bytes():
    """Returns how much of this process's memory is in large pages, by Linux itself."""
    found = re.search(r"^AnonHugePages: +(\d+) kB$", ROLLUP.read_text(), re.MULTILINE)
    return 1024 * int(found[1])


def test_memory_lies_in_large_pages_and_holds_what_it_held():
    room = mmap.mmap(-1, 8 * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    numbers = np.frombuffer(room, np.int64)
    numbers[:] = np.arange(len(numbers))
    before = large_bytes()
    found = use_large_pages([(numbers.ctypes.data, numbers.nbytes)])
    np.testing.assert_array_equal(numbers, np.arange(len(numbers)))
    if found == 0:
        pytest.skip("this system gives no large pages")
    assert 7 * PAGE_BYTES <= found <= 9 * PAGE_BYTES
    assert large_bytes() - before >= 6 * PAGE_BYTES


def test_memory_of_a_file_stays_as_it_is(tmp_path):
    file = tmp_path / "numbers"
    np.zeros(4 * PAGE_BYTES, np.uint8).tofile(file)
    numbers = np.memmap(file, np.uint8, mode="r+")
    assert use_large_pages([(numbers.ctypes.data, numbers.nbytes)]) == 0


def test_an_address_of_nothing_is_left_out():
    assert use_large_pages([(16, PAGE_BYTES)]) == 0
