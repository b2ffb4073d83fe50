"""Large pages: what is asked for, and that it changes no memory."""

import mmap
import platform
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from axcore.hardware.host_memory import PAGE_BYTES, use_large_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system has no large pages")
SMAPS = Path("/proc/self/smaps")


def large_bytes(first, size):
    """Returns how much of a piece of memory is in large pages, by Linux itself."""
    blocks = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text(), flags=re.MULTILINE)
    found = 0
    for block in filter(None, blocks):
        start, end = (int(one, 16) for one in block.split(maxsplit=1)[0].split("-"))
        if first < end and start < first + size:
            found += 1024 * int(re.search(r"^AnonHugePages: +(\d+) kB$", block, re.MULTILINE)[1])
    return found


def new_memory(num_pages):
    return mmap.mmap(-1, num_pages * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def is_given_large_pages():
    """Returns whether Linux gives them to new memory, and is new enough for memory in use."""
    release = tuple(int(one) for one in re.findall(r"\d+", platform.release())[:2])
    room = new_memory(4)
    room.madvise(mmap.MADV_HUGEPAGE)
    numbers = np.frombuffer(room, np.uint8)
    numbers[:] = 1
    return release >= (6, 1) and large_bytes(numbers.ctypes.data, numbers.nbytes) > 0


def test_memory_lies_in_large_pages_and_holds_what_it_held():
    if not is_given_large_pages():
        pytest.skip("this system gives no large pages, or not to memory that is in use")
    numbers = np.frombuffer(new_memory(8), np.int64)
    numbers[:] = np.arange(len(numbers))
    piece = numbers.ctypes.data, numbers.nbytes
    found = use_large_pages([piece])
    np.testing.assert_array_equal(numbers, np.arange(len(numbers)))
    assert 7 * PAGE_BYTES <= found <= 9 * PAGE_BYTES
    assert large_bytes(*piece) >= 7 * PAGE_BYTES


def test_memory_of_a_file_stays_as_it_is(tmp_path):
    file = tmp_path / "numbers"
    np.zeros(4 * PAGE_BYTES, np.uint8).tofile(file)
    numbers = np.memmap(file, np.uint8, mode="r+")
    assert use_large_pages([(numbers.ctypes.data, numbers.nbytes)]) == 0


def test_an_address_of_nothing_is_left_out():
    assert use_large_pages([(16, PAGE_BYTES)]) == 0
