"""What becomes of memory that a step on host processors is done with."""

import ctypes
import os
import sys

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
