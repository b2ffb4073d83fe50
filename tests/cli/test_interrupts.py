"""Ctrl-C before the first step: exit code 130 and one clear line, never a crash."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from quick_flags import quick_environment

from axcore.cli.interrupts import SAID

SMALL = ("data.seq_len=32", "data.validation_batches=1", "**.warmup_steps=1", "max_steps=5")


@pytest.fixture
def training(tmp_path):
    """Starts `axcore train tiny` and kills it where a test leaves it running."""
    process = subprocess.Popen(
        [sys.executable, "-m", "axcore", "train", "tiny", "--dir", str(tmp_path / "run")]
        + [f"--set={one}" for one in SMALL],
        env=quick_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_ctrl_c_during_imports_ends_with_one_line(training):
    while "jaxlib" not in Path(f"/proc/{training.pid}/maps").read_text():
        time.sleep(0.01)
    training.send_signal(signal.SIGINT)
    _, err = training.communicate(timeout=60)
    assert training.returncode == 130
    assert err.strip() == SAID


@pytest.mark.slow
def test_two_ctrl_c_during_compilation_end_the_command_without_a_crash(training):
    for line in training.stdout:
        if line.startswith("MFU"):  # the last line before the step is compiled
            break
    training.send_signal(signal.SIGINT)
    time.sleep(0.1)
    training.send_signal(signal.SIGINT)
    _, err = training.communicate(timeout=60)
    assert (training.returncode, SAID in err) == (130, True)
