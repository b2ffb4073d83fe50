"""`kill -9`, then the same run again in a fresh process: bit by bit as if it was never killed."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from quick_flags import quick_environment

WORKER = Path(__file__).with_name("training_worker.py")


@pytest.fixture(scope="module", params=["text", pytest.param("digits", marks=pytest.mark.long)])
def data(request, text_folder):
    """What a worker trains on: documents, or images."""
    return text_folder if request.param == "text" else request.param


@pytest.fixture(scope="module")
def start(data):
    """Starts a worker on a run directory."""

    def start_worker(directory, *death):
        arguments = [WORKER, data, directory, *death]
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=quick_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start_worker


def finish(worker):
    out, err = worker.communicate(timeout=300)
    assert (worker.returncode, err) == (0, "")
    return out


def killed(worker):
    worker.communicate(timeout=300)
    return worker.returncode == -signal.SIGKILL


def losses(directory):
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [(line["step"], line["split"], line["loss"]) for line in map(json.loads, lines)]


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    return finish(start(directory)), losses(directory)


@pytest.mark.slow
def test_a_run_killed_at_several_steps_ends_as_one_never_stopped(start, whole, tmp_path):
    deaths = (
        ("StepsDone", 3),  # before the first checkpoint
        ("StepsDone", 6),  # between two
        ("StepsDone", 9),  # while one is being written, or just after
        ("CheckpointSaved", 12),  # before what is known of it is written
    )
    for death in deaths:
        assert killed(start(tmp_path / "run", *death))
    assert finish(start(tmp_path / "run")) == whole[0]
    assert losses(tmp_path / "run") == whole[1]


@pytest.mark.slow
def test_a_run_killed_from_outside_at_any_moment_ends_as_one_never_stopped(start, whole, tmp_path):
    worker = start(tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    while worker.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.01)
    time.sleep(random.SystemRandom().uniform(0, 0.3))
    worker.kill()
    worker.communicate(timeout=300)
    assert finish(start(tmp_path / "run")) == whole[0]
    assert losses(tmp_path / "run") == whole[1]
