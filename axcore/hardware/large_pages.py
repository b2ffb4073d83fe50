"""`use_large_pages`: memory of this process in pages of 2 MiB, to look fewer addresses up.

A processor looks up where each page of memory is. A model that serves reads all weights for each
token, and with pages of 4 KiB does so for a quarter of a million pages of a gibibyte.
"""

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path

PAGE_BYTES = 2 << 20
_MAPS = Path("/proc/self/maps")
_WANTED, _NOW = 14, 25
"""`MADV_HUGEPAGE` and, since Linux 6.1, `MADV_COLLAPSE`."""


def use_large_pages(pieces: Iterable[tuple[int, int]]) -> int:
    """Ask Linux to keep pieces of memory in large pages, and return how many bytes it does.

    Those that are partly in a large page count in whole. What they hold stays as it is. Memory of
    files stays in small pages, and so does all on another system, before Linux 6.1, where large
    pages are switched off, and where no full one is free.

    Args:
        pieces: Address and size in bytes of each.
    """
    if sys.platform != "linux":
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    free_of_files = _without_file()
    pages = {
        page
        for address, size in pieces
        for first, behind in free_of_files
        if first <= address < behind
        for page in range(address // PAGE_BYTES * PAGE_BYTES, address + size, PAGE_BYTES)
        if first <= page and page + PAGE_BYTES <= behind
    }
    are_large = [
        advise(page, PAGE_BYTES, _WANTED) == 0 and advise(page, PAGE_BYTES, _NOW) == 0
        for page in sorted(pages)
    ]
    return PAGE_BYTES * are_large.count(True)


def _without_file() -> list[tuple[int, int]]:
    """Return the ranges of memory that can be written and belong to no file."""
    found: list[tuple[int, int]] = []
    for line in _MAPS.read_text(encoding="utf-8").splitlines():
        span, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights.startswith("rw") and name in ([], ["[heap]"]):
            first, behind = (int(end, 16) for end in span.split("-"))
            if found and found[-1][1] == first:  # one piece of memory, of which parts differ
                first = found.pop()[0]
            found.append((first, behind))
    return found
