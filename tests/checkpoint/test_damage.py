"""What happens to a checkpoint from outside is found, named, and never made worse."""

import json
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.checkpoint import Checkpointer, CheckpointWarning, DamagedCheckpointError, manifest
from axcore.errors import CheckpointError

TEMPLATE = {
    "w": jax.ShapeDtypeStruct((64, 64), jnp.float32),
    "b": jax.ShapeDtypeStruct((64,), jnp.bfloat16),
}


def state_of(step):
    key = jax.random.key(step)
    return {
        "w": jax.random.normal(key, (64, 64)),
        "b": jnp.full((64,), step, jnp.bfloat16),
    }


def open_checkpoints(path, **changes):
    return Checkpointer.Config(**changes).build(directory=str(path))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    path = tmp_path_factory.mktemp("pristine")
    with open_checkpoints(path) as checkpoints:
        for step in (100, 200):
            checkpoints.save(step, state_of(step), {"position": step})
    return path


@pytest.fixture
def run(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "run")


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def snapshot(directory):
    return {path: path.read_bytes() for path in files_of(directory)}


def largest_file(directory):
    return max(files_of(directory), key=lambda path: path.stat().st_size)


def flip_bit(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)


def test_every_flipped_bit_is_found_and_its_file_named(run):
    draw = random.Random(0)
    files = [path for path in files_of(run / "step_00000200") if path.stat().st_size]
    assert any(path.name == "manifest.json" for path in files)
    checkpoints = open_checkpoints(run)
    for path in [*files, *draw.choices(files, k=20)]:
        bit = draw.randrange(8 * path.stat().st_size)
        flip_bit(path, bit)
        name = path.relative_to(run / "step_00000200").as_posix()
        with pytest.raises(DamagedCheckpointError, match=f"step 200 is damaged: .*{name}"):
            checkpoints.restore(TEMPLATE, step=200)
        flip_bit(path, bit)
    assert checkpoints.restore(TEMPLATE, step=200).step == 200


def test_every_flipped_bit_of_a_manifest_is_found(run):
    manifest = run / "step_00000200" / "manifest.json"
    draw = random.Random(1)
    checkpoints = open_checkpoints(run)
    for bit in draw.sample(range(8 * manifest.stat().st_size), 200):
        flip_bit(manifest, bit)
        with pytest.raises(DamagedCheckpointError, match=r"manifest\.json has changed"):
            checkpoints.manifest(200)
        flip_bit(manifest, bit)


def test_a_damaged_newest_step_is_passed_over_loudly_and_left_alone(run):
    flip_bit(largest_file(run / "step_00000200"), 4000)
    before = snapshot(run)
    with pytest.warns(CheckpointWarning) as warned:
        restored = open_checkpoints(run).restore(TEMPLATE)
    assert (restored.step, restored.extra) == (100, {"position": 100})
    assert np.array_equal(restored.state["w"], state_of(100)["w"])
    text = str(warned[0].message)
    assert "step 200 is damaged: arrays/" in text
    assert "has changed since it was saved" in text
    where = run / "step_00000200"
    assert f"left as it is in {where} until this run saves, which quarantines it" in text
    assert text.endswith("going back to step 100.")
    assert warned[0].filename == __file__
    assert snapshot(run) == before


def test_going_on_after_a_damaged_step_quarantines_it(run):
    flip_bit(largest_file(run / "step_00000200"), 4000)
    before = snapshot(run / "step_00000200")
    with open_checkpoints(run) as checkpoints:
        with pytest.warns(CheckpointWarning, match="going back to step 100"):
            checkpoints.restore(TEMPLATE)
        with pytest.warns(
            CheckpointWarning, match=r"step 200 is damaged, and is renamed to step_N\.quarantined"
        ):
            checkpoints.save(200, state_of(7))
        assert np.array_equal(checkpoints.restore(TEMPLATE).state["w"], state_of(7)["w"])
    aside = {
        run / "step_00000200.quarantined" / p.relative_to(run / "step_00000200") for p in before
    }
    assert [path.read_bytes() for path in sorted(aside)] == [before[p] for p in sorted(before)]


def test_a_step_in_the_place_of_another_is_damage(run):
    shutil.rmtree(run / "step_00000200")
    shutil.copytree(run / "step_00000100", run / "step_00000200")
    with pytest.raises(DamagedCheckpointError, match=r"manifest\.json is that of step 100"):
        open_checkpoints(run).restore(TEMPLATE, step=200)


def test_asking_for_a_step_never_gives_another(run):
    flip_bit(largest_file(run / "step_00000200"), 0)
    with pytest.raises(DamagedCheckpointError, match="step 200 is damaged"):
        open_checkpoints(run).restore(TEMPLATE, step=200)


def test_falling_back_can_be_forbidden(run):
    flip_bit(largest_file(run / "step_00000200"), 0)
    with pytest.raises(DamagedCheckpointError, match="step 200 is damaged") as raised:
        open_checkpoints(run, on_damage="stop").restore(TEMPLATE)
    assert "set on_damage to 'fall_back'" in str(raised.value)


def test_where_nothing_is_whole_every_damage_is_told(run):
    largest_file(run / "step_00000100").unlink()
    (run / "step_00000200" / "manifest.json").unlink()
    before = snapshot(run)
    with (
        pytest.warns(CheckpointWarning, match="going back to step 100"),
        pytest.raises(DamagedCheckpointError, match="no checkpoint is intact") as raised,
    ):
        open_checkpoints(run).restore(TEMPLATE)
    assert "step 200 is damaged: manifest.json is missing" in str(raised.value)
    assert "step 100 is damaged: arrays/" in str(raised.value)
    assert "step 200 is damaged" in str(raised.value.__cause__)
    assert snapshot(run) == before


def test_a_misfit_of_the_older_step_does_not_hide_the_damage(tmp_path):
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(100, {"w": state_of(100)["w"]})
        checkpoints.save(200, state_of(200))
        checkpoints.wait()
        flip_bit(largest_file(tmp_path / "step_00000200"), 0)
        with (
            pytest.warns(CheckpointWarning, match="step 200 is damaged"),
            pytest.raises(CheckpointError, match="step 100 does not fit"),
        ):
            checkpoints.restore(TEMPLATE)


@pytest.mark.parametrize("index", range(2))
def test_a_truncated_file_is_named_with_both_sizes(run, index):
    files = sorted(files_of(run / "step_00000200" / "arrays"), key=lambda p: -p.stat().st_size)
    path = files[index]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(DamagedCheckpointError) as raised:
        open_checkpoints(run).restore(TEMPLATE, step=200)
    assert f"{path.name} has {size // 2} bytes; it was saved with {size}" in str(raised.value)


def test_a_half_deleted_step_names_what_is_missing(run):
    doomed = files_of(run / "step_00000200" / "arrays")[::2]
    for path in doomed:
        path.unlink()
    with pytest.raises(DamagedCheckpointError) as raised:
        open_checkpoints(run).restore(TEMPLATE, step=200)
    for path in doomed:
        assert f"{path.name} is missing" in str(raised.value)


def test_an_emptied_step_is_damage_not_a_fresh_start(run):
    shutil.rmtree(run / "step_00000100")
    shutil.rmtree(run / "step_00000200")
    (run / "step_00000200").mkdir()
    checkpoints = open_checkpoints(run)
    assert checkpoints.latest() == 200
    with pytest.raises(DamagedCheckpointError, match=r"manifest\.json is missing"):
        checkpoints.restore(TEMPLATE)


def test_an_unfinished_step_is_not_listed_and_is_cleared_by_the_next_writer(run):
    shutil.copytree(run / "step_00000200", run / "step_00000300.incomplete")
    shutil.copytree(run / "step_00000100", run / "step_00000050.deleting")
    checkpoints = open_checkpoints(run)
    assert checkpoints.steps() == (100, 200)
    assert checkpoints.restore(TEMPLATE).step == 200
    assert (run / "step_00000300.incomplete").exists()
    with checkpoints:
        checkpoints.save(250, state_of(250))
    assert sorted(p.name for p in run.iterdir() if p.is_dir()) == [
        "step_00000100", "step_00000200", "step_00000250",
    ]  # fmt: skip


def test_a_checkpoint_of_a_newer_format_is_not_called_damaged(run, monkeypatch):
    from axcore.checkpoint import manifest

    known = manifest.read_manifest(run / "step_00000200")
    monkeypatch.setattr(manifest, "FORMAT_VERSION", 3)
    manifest.write_manifest(run / "step_00000200", known)
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match=r"has format 3, .* this axcore reads formats 1 to 2"
    ) as e:
        open_checkpoints(run).restore(TEMPLATE)
    assert not isinstance(e.value, DamagedCheckpointError)


def test_a_manifest_is_plain_json(run):
    body = json.loads((run / "step_00000100" / "manifest.json").read_text())
    assert body["format"] == "axcore-checkpoint"
    assert body["step"] == 100
    assert body["leaves"] == {"b": ["bfloat16", [64]], "w": ["float32", [64, 64]]}


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 3000])
def test_files_are_measured_piece_by_piece(tmp_path, monkeypatch, size):
    import zlib

    monkeypatch.setattr(manifest, "PIECE_BYTES", 1000)
    data = random.Random(size).randbytes(size)
    (tmp_path / "data").write_bytes(data)
    record = manifest.record_files(tmp_path)["data"]
    starts = range(0, max(size, 1), 1000)
    assert record.crc32 == tuple(f"{zlib.crc32(data[i : i + 1000]):08x}" for i in starts)
    if size:
        flip_bit(tmp_path / "data", 8 * size - 1)
        assert len(manifest.find_damage(tmp_path, {"data": record})) == 1
