"""`kill -9` in a rollout, in a reward and in an update: bit by bit as if it was never killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from quick_flags import compile_cache, quick_environment

WORKER = Path(__file__).with_name("rollout_worker.py")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a worker on a run directory, and returns how it ended and what it printed."""
    environment = {**quick_environment(), **compile_cache(tmp_path_factory.mktemp("compiled"))}

    def start_worker(directory, *death):
        done = subprocess.run(
            [sys.executable, str(WORKER), str(directory), *death],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.returncode, [one for one in done.stdout.splitlines() if "DIGEST" in one]

    return start_worker


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    code, digest = start(tmp_path_factory.mktemp("whole") / "run")
    assert code == 0
    return digest


@pytest.mark.slow
@pytest.mark.parametrize("death", [("rollout", "14"), ("reward", "40"), ("update", "8")])
def test_a_run_that_was_killed_ends_with_the_same_bits(start, whole, tmp_path, death):
    code, _ = start(tmp_path / "run", *death)
    assert code == -signal.SIGKILL
    assert start(tmp_path / "run") == (0, whole)
