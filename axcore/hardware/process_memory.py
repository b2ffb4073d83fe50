"""The host's memory: how much there is, and how much of it this process has had."""

import os
import re
import resource
import sys
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
