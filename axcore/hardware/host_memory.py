"""The host's memory: how much there is, what becomes of freed memory, and pages of 2 MiB."""

import ctypes
import os
import re
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

_STATUS = Path("/proc/self/status")
_HIGHEST = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def host_bytes() -> int:
    """Return the bytes of memory that the host has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """Return the most bytes that this process has had in memory at once.

    Where the kernel keeps the figure by program it is that, else the one of `getrusage`, which a
    process inherits from what started it.
    """
    found = _HIGHEST.search(_STATUS.read_text()) if _STATUS.exists() else None
    if found:
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # M_* of glibc's malloc.h
_KEEP_ALL = -1


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for what is allocated next; False where it can't.

    XLA allocates the temporaries of a step again each time. By default glibc gives blocks that
    large back at once, so the kernel has to clear every page of them again in every step: a
    quarter of the time of a small one. Nothing happens where the C library is another, or where
    it is tuned by `GLIBC_TUNABLES` or `MALLOC_*`, nor once jax is imported. Call it before other
    threads start: of those that have heaps of their own, large blocks still go back. All threads
    share one heap then, for which threads of an engine would wait: it is for training.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _is_tuned() or "jax" in sys.modules:
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEEP_ALL))
    return all(mallopt(name, value) == 1 for name, value in wanted)


def _is_tuned() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)


PAGE_BYTES = 2 << 20
_MAPS = Path("/proc/self/maps")
_WANTED, _NOW = 14, 25
"""`MADV_HUGEPAGE` and, since Linux 6.1, `MADV_COLLAPSE`."""


def use_large_pages(pieces: Iterable[tuple[int, int]]) -> int:
    """Ask Linux to keep pieces of memory in large pages, and return how many bytes it does.

    A processor looks up where each page of memory is. A model that serves reads all weights for
    each token, and with pages of 4 KiB does so for a quarter of a million pages of a gibibyte.

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
