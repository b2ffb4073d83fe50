"""A process killed at any moment of a save loses nothing that was committed before."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_run import wait_for
from marked_processes import is_stopped

from axcore.checkpoint import Checkpointer
from axcore.errors import CheckpointError

WORKER = Path(__file__).with_name("saving_worker.py")
TEMPLATE = {
    "w": jax.ShapeDtypeStruct((200, 1000), jnp.float32),
    "step": jax.ShapeDtypeStruct((), jnp.int32),
}


def load_state_of():
    spec = importlib.util.spec_from_file_location("saving_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.state_of


state_of = load_state_of()


def start_worker(directory, first, *more):
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(directory), str(first), *map(str, more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},  # jaxlib 0.10.0 logs more
    )


def last_reported(text, default):
    return max((int(line.split()[1]) for line in text.splitlines()), default=default)


def check_newest(directory, at_least):
    """Restores the newest step without a warning and compares every bit; returns the step."""
    checkpoints = Checkpointer.Config().build(directory=str(directory))
    restored = checkpoints.restore(TEMPLATE)
    assert restored.step >= at_least
    assert restored.extra == {"step": restored.step}
    wanted = state_of(restored.step)
    assert np.array_equal(restored.state["w"], wanted["w"])
    assert int(restored.state["step"]) == restored.step
    for step in checkpoints.steps():
        checkpoints.verify(step)
    return restored.step


@pytest.mark.slow
def test_a_process_killed_at_random_moments_always_resumes(tmp_path):
    draw, newest = random.Random(0), 0
    for _ in range(4):
        worker = start_worker(tmp_path, newest + 1)
        first_line = worker.stdout.readline()
        time.sleep(draw.uniform(0, 0.3))
        worker.kill()
        out, err = worker.communicate()
        assert (worker.returncode, err) == (-signal.SIGKILL, "")
        newest = check_newest(tmp_path, last_reported(first_line + out, newest))
    assert newest >= 4


@pytest.mark.slow
def test_a_writer_that_is_stopped_keeps_its_lock_and_continues(tmp_path):
    worker = start_worker(tmp_path, 1)
    saved = last_reported(worker.stdout.readline(), 0)
    time.sleep(0.05)
    worker.send_signal(signal.SIGSTOP)
    wait_for(lambda: is_stopped(worker.pid), "the stop")
    newest = check_newest(tmp_path, saved)
    with pytest.raises(CheckpointError, match=rf"\(pid {worker.pid} on .* is already saving"):
        Checkpointer.Config().build(directory=str(tmp_path)).save(newest + 9, state_of(1))
    assert check_newest(tmp_path, saved) == newest
    worker.send_signal(signal.SIGCONT)
    while last_reported(worker.stdout.readline(), 0) <= newest:
        pass
    worker.kill()
    _, err = worker.communicate()
    assert err == ""
    check_newest(tmp_path, newest + 1)


@pytest.mark.parametrize(
    ("event", "path_end", "newest"),
    [
        ("os.mkdir", "arrays/process_0", 1),
        ("os.rename", "manifest.json", 1),
        ("os.rename", "step_00000002.incomplete", 1),
        ("os.rename", "step_00000001", 3),
        ("os.rmdir", "step_00000001.deleting", 3),
    ],
)
@pytest.mark.quick_one_in(5)
def test_a_process_killed_before_a_file_operation_resumes(tmp_path, event, path_end, newest):
    with Checkpointer.Config().build(directory=str(tmp_path)) as checkpoints:
        checkpoints.save(1, state_of(1), {"step": 1})
    worker = start_worker(tmp_path, 2, event, path_end)
    _, err = worker.communicate(timeout=300)
    assert (worker.returncode, err) == (-signal.SIGKILL, "")
    assert check_newest(tmp_path, newest) == newest
    with Checkpointer.Config().build(directory=str(tmp_path)) as checkpoints:
        checkpoints.save(newest + 1, state_of(newest + 1), {"step": newest + 1})
    assert check_newest(tmp_path, newest + 1) == newest + 1
    assert not [path.name for path in tmp_path.glob("step_*.*")]


@pytest.mark.slow
def test_a_save_in_flight_is_finished_when_the_process_ends_without_closing(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(WORKER.parent)!r})\n"
        "import jax.numpy as jnp; from saving_worker import *\n"
        f"checkpoints = Checkpointer.Config().build(directory={str(tmp_path)!r})\n"
        "state = state_of(1) | {f'x{i}': jnp.ones((1 << 20,)) for i in range(20)}\n"
        "checkpoints.save(1, state, {'step': 1})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
    checkpoints = Checkpointer.Config().build(directory=str(tmp_path))
    assert np.array_equal(checkpoints.restore(TEMPLATE, partial=True).state["w"], state_of(1)["w"])
