"""Large blocks that were freed serve again, in whichever thread."""

import platform
import subprocess
import sys

import pytest

NUM_PAGES = 20_000
PROGRAM = """
import ctypes, resource, sys, threading
from axcore.hardware.host_memory import keep_freed_memory

kept = keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
counts = []

def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(int(sys.argv[1]) * 4096)
    ctypes.memset(block, 1, int(sys.argv[1]) * 4096)
    libc.free(block)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

def use_in_thread():
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()

use(); use_in_thread(); use()
print(kept, *counts[1:])
"""


def run(**environment):
    """Returns whether memory is kept, and the new pages of the second and the third block."""
    command = [sys.executable, "-c", PROGRAM, str(NUM_PAGES)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    kept, *counts = done.stdout.split()
    return kept == "True", [int(count) for count in counts]


@pytest.fixture
def path(monkeypatch):
    """Returns the variables by which a process finds axcore, and no others."""
    return {"PYTHONPATH": ":".join(sys.path)}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_serves_again_in_any_thread(path):
    kept, counts = run(**path)
    assert kept
    assert max(counts) < NUM_PAGES / 10


def test_what_the_user_tuned_stays(path):
    kept, _ = run(**path, MALLOC_ARENA_MAX="2")
    assert not kept
