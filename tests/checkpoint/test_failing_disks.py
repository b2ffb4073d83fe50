"""A disk that fails costs a warning and another try, then a clear stop; nothing older is lost."""

import contextlib
import re
import resource
import subprocess
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.checkpoint import Checkpointer, CheckpointWarning, writer
from axcore.checkpoint.save import LONGEST_WAIT_S, RetryPolicy
from axcore.errors import CheckpointError


def open_checkpoints(path, **changes):
    fields = {"tries": 2, "retry_after_s": 0.2, **changes}
    return Checkpointer.Config(**fields).build(directory=str(path))


def state_of(step, megabytes=1.0):
    values = np.random.default_rng(step).standard_normal(int(megabytes * 250_000), dtype="float32")
    return {"w": jnp.asarray(values), "key": jax.random.key(step)}


def save(checkpoints, step, megabytes=1.0):
    checkpoints.save(step, state_of(step, megabytes), {"step": step})
    checkpoints.wait()


def assert_newest(path, step, megabytes=1.0):
    restored = open_checkpoints(path).restore(state_of(0, megabytes))
    wanted = state_of(step, megabytes)
    assert (restored.step, restored.extra) == (step, {"step": step})
    assert np.array_equal(restored.state["w"], wanted["w"])
    assert jnp.array_equal(
        jax.random.key_data(restored.state["key"]), jax.random.key_data(wanted["key"])
    )


@contextlib.contextmanager
def failing_files():
    """No file may become larger than 64 KiB while this lasts."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def fixed_at_a_warning(text, fix):
    """Fixes what is wrong once a try has failed and the next one has not begun; it must fail."""
    told = []

    def show(message, *_):
        told.append(str(message))
        fix()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield
    assert [bool(re.search(text, one)) for one in told] == [True], told


def test_waits_double_up_to_a_bound():
    assert RetryPolicy(tries=4, wait_s=0.5).waits() == [0.5, 1.0, 2.0]
    assert RetryPolicy(tries=1, wait_s=1.0).waits() == []
    assert max(RetryPolicy(tries=30, wait_s=1.0).waits()) == LONGEST_WAIT_S


@pytest.mark.skipif(not writer.THREADS_START_AT_EXIT, reason="a save is waited for on this Python")
@pytest.mark.slow
def test_a_save_that_fails_is_written_again_from_memory_bit_by_bit(tmp_path):
    overwrite = jax.jit(lambda w: w * 0, donate_argnums=0)
    is_overwritten = threading.Event()
    with open_checkpoints(tmp_path) as checkpoints, contextlib.ExitStack() as failing:
        save(checkpoints, 1)
        state = state_of(2)

        def fix():
            assert is_overwritten.wait(60)
            failing.close()

        failing.enter_context(failing_files())
        with fixed_at_a_warning(r"saving step 2 failed: .*; try 2 follows in 0\.2 s", fix):
            checkpoints.save(2, state, {"step": 2})
            jax.block_until_ready(overwrite(state["w"]))
            is_overwritten.set()
            checkpoints.wait()
    assert_newest(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.glob("step_*")) == [
        "step_00000001", "step_00000002",
    ]  # fmt: skip


def test_a_save_that_goes_on_failing_ends_with_what_was_asked_and_harms_nothing(tmp_path):
    with open_checkpoints(tmp_path, tries=3, retry_after_s=0.01, keep=1) as checkpoints:
        save(checkpoints, 1)
        with (
            pytest.warns(CheckpointWarning) as caught,
            failing_files(),
            pytest.raises(
                CheckpointError,
                match=r"saving step 2 failed: .*about 1\.0 MB needed, .* MB free.* tried 3 times",
            ),
        ):
            save(checkpoints, 2)
        assert len(caught) == 2
        assert checkpoints.steps() == (1,)
        save(checkpoints, 3)
    assert_newest(tmp_path, 3)


def test_a_disk_that_is_too_small_is_known_before_it_is_filled(small_disk):
    path = small_disk(4)
    with open_checkpoints(path, keep=1) as checkpoints:
        with pytest.warns(CheckpointWarning, match="the next step will not fit: about 3.0 MB"):
            save(checkpoints, 1, megabytes=3)
        with (
            pytest.warns(
                CheckpointWarning, match="there is too little free space .about 3.0 MB needed"
            ),
            pytest.raises(
                CheckpointError, match=r"too little free space .about 3\.0 MB needed, 1\.\d MB"
            ),
        ):
            save(checkpoints, 2, megabytes=3)
    assert_newest(path, 1, megabytes=3)


def test_a_disk_that_fills_up_meanwhile_is_tried_again_when_there_is_space(small_disk):
    path = small_disk(8)
    hog = path / "hog"
    with open_checkpoints(path) as checkpoints:
        save(checkpoints, 1)
        hog.write_bytes(bytes(7_100_000))
        with fixed_at_a_warning("saving step 2 failed", hog.unlink):
            save(checkpoints, 2, megabytes=1.0)
    assert_newest(path, 2)


def test_a_directory_that_may_not_be_written_is_tried_again(tmp_path, immutable):
    with open_checkpoints(tmp_path) as checkpoints:
        save(checkpoints, 1)
        immutable(tmp_path)
        with (
            pytest.warns(CheckpointWarning, match="Operation not permitted"),
            pytest.raises(
                CheckpointError, match=r"saving step 2 failed: .*Operation not permitted"
            ),
        ):
            save(checkpoints, 2)
        subprocess.run(["chattr", "-i", str(tmp_path)], check=True)
        save(checkpoints, 3)
    assert_newest(tmp_path, 3)


def mount(*options):
    subprocess.run(["mount", *map(str, options)], check=True)


def test_a_disk_that_turns_read_only_is_tried_again(small_disk):
    path = small_disk(16)
    with open_checkpoints(path) as checkpoints:
        save(checkpoints, 1)
        mount("--bind", path, path)  # over what the lock is open in, which may not turn read-only
        mount("-o", "remount,bind,ro", path)
        with (
            pytest.warns(CheckpointWarning, match="Read-only"),
            pytest.raises(CheckpointError, match="Read-only file system"),
        ):
            save(checkpoints, 2)
        subprocess.run(["umount", str(path)], check=True)
        save(checkpoints, 3)
    assert_newest(path, 3)


def test_a_directory_that_vanishes_is_never_written_elsewhere(tmp_path):
    path, away = tmp_path / "checkpoints", tmp_path / "away"
    with open_checkpoints(path) as checkpoints:
        save(checkpoints, 1)
        path.rename(away)
        path.mkdir()  # as an unmounted disk leaves its mount point

        def come_back():
            path.rmdir()
            away.rename(path)

        with fixed_at_a_warning("no longer the one that was locked", come_back):
            save(checkpoints, 2)
        assert checkpoints.steps() == (1, 2)
    assert_newest(path, 2)


def spoil_once(draft):
    """Change a byte of a staging directory before it is read back, as a bad disk does."""
    left = [draft]

    def hook(event, args):
        if event == "os.rename" and left and str(args[1]) == f"{draft}/manifest.json":
            left.clear()
            files = [file for file in (draft / "arrays").rglob("*") if file.is_file()]
            largest = max(files, key=lambda file: file.stat().st_size)
            with largest.open("r+b") as opened:
                opened.seek(largest.stat().st_size // 2)
                opened.write(bytes([opened.read(1)[0] ^ 1]))

    sys.addaudithook(hook)


def test_what_reads_back_otherwise_is_no_step_and_is_written_again(tmp_path):
    with open_checkpoints(tmp_path, keep=1, retry_after_s=0.01) as checkpoints:
        save(checkpoints, 1)
        spoil_once(tmp_path / "step_00000002.incomplete")
        with pytest.warns(CheckpointWarning, match="step 2 failed: files differ when they are"):
            save(checkpoints, 2)
    assert_newest(tmp_path, 2)
