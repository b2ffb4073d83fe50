"""A checkpoint directory's scheme names who keeps the steps."""

import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from axcore.checkpoint import Checkpointer, CheckpointWarning
from axcore.checkpoint.replicated_storage import open_replicated
from axcore.checkpoint.storage import open_storage
from axcore.errors import CheckpointError

STATE = {"w": jnp.arange(1000.0)}


def mirrored(folder, **fields):
    directory = f"mirror://{folder / 'fast'}?copy={folder / 'durable'}"
    return Checkpointer.Config(directory=directory, **fields).build()


def save(folder, *steps, **fields):
    with mirrored(folder, **fields) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"w": STATE["w"] * step}, {"step": step})


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "writer.lock")


def test_a_path_with_and_without_its_scheme_is_one_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for directory in ("runs/a", "file://runs/a", f"file://{tmp_path}/runs/a"):
        assert open_storage(directory).root == tmp_path / "runs/a"


def test_a_scheme_that_nobody_brings_is_an_error():
    with pytest.raises(CheckpointError, match="storage 'miror'; did you mean 'mirror'") as refused:
        Checkpointer.Config(directory="miror:///a?copy=/b").build()
    assert refused.value.where == "miror:///a?copy=/b"


@pytest.mark.parametrize("place", ["/a", "?copy=/a", "/a?copy=", "/a?copy=/a", "/a/?copy=/a"])
def test_a_mirror_of_one_directory_is_an_error(place):
    with pytest.raises(CheckpointError, match="does not name two directories"):
        open_replicated(place)


def test_a_lost_disk_is_filled_from_its_copy(tmp_path):
    save(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "fast")
    checkpoints = mirrored(tmp_path)
    assert checkpoints.steps() == (1, 2)
    restored = checkpoints.restore(STATE)
    assert restored.step == 2
    assert np.array_equal(restored.state["w"], STATE["w"] * 2)
    assert names(tmp_path / "fast") == ["step_00000002"]  # only what was asked for
    save(tmp_path, 3)
    assert checkpoints.steps() == (1, 2, 3)


def test_a_step_that_was_not_copied_yet_is_copied_when_saving_goes_on(tmp_path):
    save(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "durable/step_00000002")
    save(tmp_path, 3)
    assert names(tmp_path / "durable") == [f"step_0000000{step}" for step in (1, 2, 3)]


def test_fetching_an_older_step_leaves_the_newer_ones(tmp_path):
    save(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "fast/step_00000001")
    assert mirrored(tmp_path).restore(STATE, step=1).extra == {"step": 1}
    assert names(tmp_path / "fast") == ["step_00000001", "step_00000002"]


def test_copying_an_older_step_leaves_the_newer_ones(tmp_path):
    save(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "durable/step_00000001")
    save(tmp_path, 3)
    assert names(tmp_path / "durable") == [f"step_0000000{step}" for step in (1, 2, 3)]


def damage(directory):
    largest = max(directory.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_a_damaged_step_is_replaced_by_its_copy(tmp_path):
    save(tmp_path, 1, 2)
    damage(tmp_path / "fast/step_00000002")
    with pytest.warns(CheckpointWarning, match="step 2 is damaged: .* and its copy restored"):
        restored = mirrored(tmp_path).restore(STATE)
    assert np.array_equal(restored.state["w"], STATE["w"] * 2)
    assert names(tmp_path / "fast") == [
        *("step_00000001", "step_00000002", "step_00000002.quarantined")
    ]
    mirrored(tmp_path).verify(2)


def test_a_step_that_is_damaged_in_both_places_is_passed_over(tmp_path):
    save(tmp_path, 1, 2)
    for place in ("fast", "durable"):
        damage(tmp_path / place / "step_00000002")
    with pytest.warns(CheckpointWarning) as caught:
        assert mirrored(tmp_path).restore(STATE).step == 1
    texts = [str(one.message) for one in caught]
    assert ["its copy restored" in texts[0], "going back to step 1" in texts[1]] == [True, True]
    assert len(texts) == 2


def test_old_steps_go_in_both_places(tmp_path):
    save(tmp_path, 1, 2, 3, keep=2)
    for place in ("fast", "durable"):
        assert names(tmp_path / place) == ["step_00000002", "step_00000003"]


def test_a_copy_that_fails_is_an_error_and_harms_no_step(tmp_path):
    with mirrored(tmp_path, tries=1) as checkpoints:
        checkpoints.save(1, STATE, {"step": 1})
        checkpoints.wait()
        (tmp_path / "durable/step_00000002.incomplete").write_text("in the way")
        checkpoints.save(2, STATE)
        with pytest.raises(CheckpointError, match="saving step 2 failed: "):
            checkpoints.wait()
    (tmp_path / "durable/step_00000002.incomplete").unlink()
    assert mirrored(tmp_path).restore(STATE, step=1).extra == {"step": 1}


def test_a_run_keeps_its_steps_in_its_own_directory_unless_it_names_another(tmp_path):
    run = Path("/runs/a")
    assert Checkpointer.for_run(Checkpointer.Config(), run).directory == run / "checkpoints"
    named = Checkpointer.Config(directory=str(tmp_path / "else"))
    assert Checkpointer.for_run(named, run).directory == tmp_path / "else"
