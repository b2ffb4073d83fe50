"""Several processes save and restore one state together, and agree on what went wrong."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from several_processes import finish, start_all

from axcore.checkpoint import Checkpointer, DamagedCheckpointError

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("processes_worker.py")


def values_of(step):
    return np.random.default_rng(step).standard_normal((64, 512), dtype=np.float32)


def run(directory, task, *, count=2, devices=2):
    return [
        finish(one, 200) for one in start_all(WORKER, directory, task, count=count, devices=devices)
    ]


def told(ended):
    assert [one.exit_code for one in ended] == [0] * len(ended), ended
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]


def checkpoints_in(directory):
    return Checkpointer.Config().build(directory=str(directory))


def assert_whole(directory, step):
    """Restores a step in this one process, over another number of devices than it was saved on."""
    mesh = jax.make_mesh((8,), ("x",), devices=jax.devices()[:8])
    split, whole = (
        jax.NamedSharding(mesh, jax.P(*axes))  # the columns, which were not split before
        for axes in ((None, "x"), ())
    )
    wanted = {
        "w": jax.ShapeDtypeStruct((64, 512), jnp.float32, sharding=split),
        "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
    }
    checkpoints = checkpoints_in(directory)
    checkpoints.verify(step)
    restored = checkpoints.restore(wanted, step=step)
    assert np.array_equal(restored.state["w"], values_of(step))
    assert restored.extra == {"step": step}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory into which two processes saved, and what they saw."""
    directory = tmp_path_factory.mktemp("saved")
    return directory, told(run(directory, "save"))


def test_what_two_processes_save_one_restores_on_another_mesh(saved):
    directory, both = saved
    assert [one["steps"] for one in both] == [[1, 3], [1, 3]]
    for step in (1, 3):
        assert_whole(directory, step)


def test_every_process_wrote_its_own_part_once(saved):
    files = checkpoints_in(saved[0]).manifest(3).files
    for index in range(2):
        held = sum(one.num_bytes for name, one in files.items() if f"process_{index}/d/" in name)
        assert 32 * 512 * 4 <= held < 40 * 512 * 4, f"half of w belongs to process {index}"


def test_a_step_that_cannot_begin_is_refused_in_both(saved):
    first, second = (one["refused"] for one in saved[1])
    said = [re.sub(r"[\d,.]+ MB free", "", text) for _, text in (first, second)]  # it may differ
    assert (first[0], said[0]) == (second[0], said[1])
    assert first[0] == "CheckpointError"
    assert "saving step 2 failed: [Errno 17]" in first[1]


def test_an_array_of_one_process_alone_is_refused(saved):
    for index, one in enumerate(saved[1]):
        assert one["alone"][0] == "CheckpointError"
        assert f"w is held by process {index} alone, so 2 processes cannot" in one["alone"][1]


def test_damage_that_one_process_finds_makes_both_go_back(saved, tmp_path):
    directory = tmp_path / "copy"
    directory.mkdir()
    for path in saved[0].rglob("*"):
        if path.is_file():
            copy = directory / path.relative_to(saved[0])
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    names = list(checkpoints_in(directory).manifest(3).files)
    held_by_second = max(
        names[1::2], key=lambda name: (directory / "step_00000003" / name).stat().st_size
    )
    damaged = directory / "step_00000003" / held_by_second
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    first, second = told(run(directory, "restore"))
    assert (first["step"], second["step"]) == (1, 1)
    assert first["is right"]
    assert second["is right"]
    assert (first["rows"], second["rows"]) == (32, 32)
    assert f"{held_by_second} has changed since it was saved" in first["warnings"][0]
    assert second["warnings"] == []  # one process speaks
    with pytest.raises(DamagedCheckpointError, match="has changed since it was saved"):
        checkpoints_in(directory).verify(3)


def test_a_step_that_cannot_begin_is_written_again_by_all_processes(tmp_path):
    first, second = told(run(tmp_path, "retry"))
    assert (first["steps"], second["steps"]) == ([7, 8], [7, 8])
    assert "saving step 8 failed: " in first["warnings"][0]
    assert (len(first["warnings"]), second["warnings"]) == (1, [])
    assert_whole(tmp_path, 8)


def test_a_process_that_is_killed_during_a_save_harms_no_step(tmp_path):
    assert all(one.exit_code for one in run(tmp_path, "die"))
    assert checkpoints_in(tmp_path).steps()[0] == 5
    assert_whole(tmp_path, 5)
    assert all(one.exit_code for one in run(tmp_path, "die at commit"))
    newest = checkpoints_in(tmp_path).latest()
    assert newest in (5, 6)
    assert_whole(tmp_path, newest)
    both = told(run(tmp_path, "restore"))
    assert [(one["step"], one["is right"], one["warnings"]) for one in both] == [
        (newest, True, [])
    ] * 2
    four = told(run(tmp_path, "restore", count=4, devices=1))
    assert [(one["step"], one["is right"], one["rows"]) for one in four] == [(newest, True, 16)] * 4
