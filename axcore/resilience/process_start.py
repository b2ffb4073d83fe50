"""When this process began, before anything was imported. It loads no jax."""

import os
import time
from pathlib import Path


def process_start() -> float:
    """Returns when this process started, since the epoch; now, where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return time.time()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age
