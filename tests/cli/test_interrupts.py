"""Ctrl-C before the first step: exit code 130 and one clear line, never a crash."""

import signal
import subprocess
import sys
import time

import pytest
from quick_flags import quick_environment

from axcore.cli.interrupts import SAID

SMALL = ("data.seq_len=32", "data.validation_batches=1", "**.warmup_steps=1", "max_steps=1000000")
INTERRUPTED_AT_AN_IMPORT = """
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == "jax._src.core":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
runpy.run_module("axcore", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def train(tmp_path):
    """Starts `axcore train tiny` and kills it where a test leaves it running."""
    started = []

    def start(*program):
        words = ("train", "tiny", f"--dir={tmp_path / 'run'}", *(f"--set={one}" for one in SMALL))
        process = subprocess.Popen(
            [sys.executable, *program, *words],
            env=quick_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_ctrl_c_during_imports_ends_with_one_line(train):
    training = train("-c", INTERRUPTED_AT_AN_IMPORT)
    _, err = training.communicate(timeout=300)
    assert training.returncode == 130
    assert err.strip() == SAID


@pytest.mark.slow
def test_two_ctrl_c_during_compilation_end_the_command_without_a_crash(train):
    training = train("-m", "axcore")
    for line in training.stdout:
        if line.startswith("MFU"):  # the last line before the step is compiled
            break
    training.send_signal(signal.SIGINT)
    time.sleep(0.1)
    training.send_signal(signal.SIGINT)
    out, err = training.communicate(timeout=300)
    assert training.returncode == 130
    assert SAID in err or "the same command resumes here" in out  # a compiler may make them one
    assert "Traceback" not in err
