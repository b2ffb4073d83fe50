"""What is kept: the newest intact steps, and the newest known good one, whatever `keep` says."""

import subprocess

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.checkpoint import Checkpointer, CheckpointWarning, DamagedCheckpointError
from axcore.checkpoint.writer import expired_steps

STATE = {"w": jnp.arange(8.0)}
NUMBERS = st.sets(st.integers(0, 30))


def open_checkpoints(path, **changes):
    return Checkpointer.Config(**changes).build(directory=str(path))


def save(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, STATE)
    checkpoints.wait()


def mark(checkpoints, step):
    checkpoints.mark_good(step)
    checkpoints.wait()


def damage(path, step):
    files = [file for file in (path / f"step_{step:08d}/arrays").rglob("*") if file.is_file()]
    file = max(files, key=lambda one: one.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@given(steps=NUMBERS, good=NUMBERS, keep=st.integers(1, 5))
def test_the_newest_and_the_newest_good_never_expire(steps, good, keep):
    ordered, good = sorted(steps), good & steps
    expired = expired_steps(ordered, keep=keep, good=good)
    left = [step for step in ordered if step not in expired]
    assert expired == sorted(expired)
    assert set(ordered[-keep:]) <= set(left)
    assert not good or max(good) in left
    assert len(left) <= keep + 1


def test_the_newest_known_good_step_outlives_any_number_of_newer_ones(tmp_path):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, STATE)
        checkpoints.mark_good(1)  # while it is being written
        save(checkpoints, 2, 3)
        assert checkpoints.steps() == (1, 3)
        checkpoints.mark_good(3)
        save(checkpoints, 4)
        assert checkpoints.steps() == (3, 4)
        assert checkpoints.known_good() == (3,)


def test_a_restart_knows_what_was_good(tmp_path):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        save(checkpoints, 1)
        checkpoints.mark_good(1)
        save(checkpoints, 2)
    with open_checkpoints(tmp_path, keep=1) as again:
        assert again.known_good() == (1,)
        again.restore(STATE)
        save(again, 3, 4)
        assert again.steps() == (1, 4)
        again.verify(1)


def test_a_restored_step_can_be_marked_before_anything_is_saved(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        save(checkpoints, 1)
    with open_checkpoints(tmp_path) as again:
        again.restore(STATE)
        again.mark_good(1)
    assert open_checkpoints(tmp_path).known_good() == (1,)


def test_a_step_that_nobody_verified_is_not_marked(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        save(checkpoints, 1)
    again = open_checkpoints(tmp_path)
    with pytest.warns(CheckpointWarning, match="step 1 is not marked as good"):
        mark(again, 1)
    again.close()
    assert again.known_good() == ()


def test_a_damaged_step_is_not_one_of_those_kept(tmp_path):
    with open_checkpoints(tmp_path, keep=None) as checkpoints:
        save(checkpoints, 1, 2, 3)
    damage(tmp_path, 3)
    with open_checkpoints(tmp_path, keep=2) as again:
        with pytest.warns(CheckpointWarning, match="going back to step 2"):
            again.restore(STATE)
        with pytest.warns(CheckpointWarning, match=r"step 3 is damaged, and is renamed to step_N"):
            save(again, 5)
        assert again.steps() == (2, 5)
        for step in again.steps():
            again.verify(step)
    assert (tmp_path / "step_00000003.quarantined/manifest.json").is_file()


def test_a_damaged_known_good_step_gives_way_to_the_one_before(tmp_path):
    with open_checkpoints(tmp_path, keep=None) as checkpoints:
        save(checkpoints, 1, 2)
        for step in (1, 2):
            checkpoints.mark_good(step)
    damage(tmp_path, 2)
    with open_checkpoints(tmp_path, keep=1) as again:
        with pytest.warns(CheckpointWarning, match="going back to step 1"):
            again.restore(STATE)
        with pytest.warns(CheckpointWarning, match="step 2 is damaged"):
            save(again, 3, 4)
        assert again.steps() == (1, 4)
        assert again.known_good() == (1,)
    (tmp_path / "step_00000002.quarantined").rename(tmp_path / "step_00000002")
    with pytest.raises(DamagedCheckpointError, match="step 2 is damaged"):
        again.verify(2)


def test_a_step_that_cannot_be_deleted_is_a_warning_and_goes_next_time(tmp_path, immutable):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        save(checkpoints, 1)
        step = tmp_path / "step_00000001"
        immutable(step)
        with pytest.warns(CheckpointWarning, match="step 1 could not be deleted: .* tried again"):
            save(checkpoints, 2)
        assert checkpoints.steps() == (1, 2)
        subprocess.run(["chattr", "-i", str(step)], check=True)
        save(checkpoints, 3)
        assert checkpoints.steps() == (3,)


def test_a_step_that_is_half_deleted_is_no_step_and_goes_next_time(tmp_path, immutable):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        save(checkpoints, 1)
        immutable(tmp_path / "step_00000001/manifest.json")
        with pytest.warns(CheckpointWarning, match="step 1 could not be deleted: .* tried again"):
            save(checkpoints, 2)
        assert checkpoints.steps() == (2,)
    with open_checkpoints(tmp_path, keep=1) as again:
        again.restore(STATE)
        with pytest.warns(CheckpointWarning, match="left by a process that ended, and could not"):
            again.mark_good(2)
    left = tmp_path / "step_00000001.deleting"
    subprocess.run(["chattr", "-i", str(left / "manifest.json")], check=True)
    with open_checkpoints(tmp_path, keep=1) as again:
        save(again, 3)
    assert {path.name for path in tmp_path.iterdir()} == {
        "step_00000002",
        "step_00000003",
        "writer.lock",
    }
