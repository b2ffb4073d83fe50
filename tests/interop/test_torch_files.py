"""`.bin` files are read as the tensors that they have, and run nothing."""

import io
import json
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy_state import numpy_state
from safetensors.numpy import load_file

from axcore.errors import CheckpointError
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.interop.torch_files import tensors_in_bin
from axcore.models import llama2

STORAGES = {"float32": "FloatStorage", "bfloat16": "BFloat16Storage", "int64": "LongStorage"}


class Stored:
    """A tensor, as it is pickled."""

    def __init__(self, key, array, module):
        self.key, self.array, self.module = key, array, module

    def __reduce__(self):
        strides = tuple(size // self.array.itemsize for size in self.array.strides)
        args = (self.storage(), 0, self.array.shape, strides, False, OrderedDict())
        return self.module._rebuild_tensor_v2, args

    def storage(self):
        return ("storage", STORAGES[str(self.array.dtype)], self.key, "cpu", self.array.size)


class Pickler(pickle.Pickler):
    def persistent_id(self, one):
        if isinstance(one, tuple) and one[:1] == ("storage",):
            return (one[0], getattr(sys.modules["torch"], one[1]), *one[2:])
        return None


def pickled(content):
    data = io.BytesIO()
    Pickler(data, protocol=2).dump(content)
    return data.getvalue()


@pytest.fixture
def write(monkeypatch):
    """Writes arrays as PyTorch does, which need not be installed."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def _rebuild_tensor_v2(*args):
        raise AssertionError("only its name is used")

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    for name in STORAGES.values():
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def written(path, arrays, *, compression=zipfile.ZIP_STORED):
        stored = {name: Stored(str(i), one, utils) for i, (name, one) in enumerate(arrays.items())}
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("archive/data.pkl", pickled(OrderedDict(stored)))
            for i, array in enumerate(arrays.values()):
                archive.writestr(f"archive/data/{i}", array.tobytes("A"))
            archive.writestr("archive/byteorder", "little")

    return written


def arrays():
    random = np.random.default_rng(0)
    return {
        "a.weight": random.normal(size=(3, 4)).astype(np.float32),
        "b": random.normal(size=5).astype(ml_dtypes.bfloat16),
        "c": np.array(7, np.int64),
    }


def test_tensors_are_those_that_were_written(write, tmp_path):
    write(tmp_path / "m.bin", arrays())
    found = tensors_in_bin(tmp_path / "m.bin")
    assert found.keys() == arrays().keys()
    for name, array in arrays().items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name].read(), array)


@pytest.fixture
def folder(tmp_path):
    cfg = llama2("toy")
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "model", cfg, state)
    return tmp_path / "model"


@pytest.mark.parametrize("is_split", [False, True])
def test_a_folder_is_read_as_the_one_with_safetensors(is_split, write, folder):
    expected, file = from_hugging_face(folder), folder / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    if is_split:
        names = sorted(tensors)
        halves = {"1.bin": names[::2], "2.bin": names[1::2]}
        for part, own in halves.items():
            write(folder / part, {name: tensors[name] for name in own})
        index = {name: part for part, own in halves.items() for name in own}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    else:
        write(folder / "pytorch_model.bin", tensors)
    jax.tree.map(np.testing.assert_array_equal, from_hugging_face(folder).state, expected.state)


def test_safetensors_are_read_where_a_folder_has_both(folder):
    (folder / "pytorch_model.bin").write_bytes(b"no archive")
    from_hugging_face(folder)


class Runs:
    """Runs a program where a pickle is read as pickles are."""

    def __reduce__(self):
        return Path.touch, (Path("was_run"),)


def archive(path, data):
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("archive/data.pkl", data)


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "torch.load", "axcore.errors.x"])
def test_a_name_that_makes_no_tensor_is_refused_before_it_is_looked_up(name, tmp_path):
    module, _, function = name.rpartition(".")
    data = f"c{module}\n{function}\n(".encode() + b"X\x05\x00\x00\x00touchtR."
    archive(tmp_path / "m.bin", data)
    with pytest.raises(CheckpointError, match=f"it would run {module}.{function}") as error:
        tensors_in_bin(tmp_path / "m.bin")
    assert "hint: " in str(error.value)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\x80\x02}r\xff\xff\xff\x7f.", "remembers 2,147,483,647 objects of 2"),
        (b"\x80\x02I1\n.", "has INT, which PyTorch does not write"),
    ],
)
def test_a_pickle_that_costs_memory_by_itself_is_refused(data, match, tmp_path):
    archive(tmp_path / "m.bin", data)
    with pytest.raises(CheckpointError, match=match):
        tensors_in_bin(tmp_path / "m.bin")


def test_what_was_checked_cannot_be_changed_by_the_pickle(write, tmp_path):
    """A BUILD with other places, after the tensor was made."""
    tensor = write(tmp_path / "m.bin", {"a": np.zeros(2, np.float32)})
    del tensor
    with zipfile.ZipFile(tmp_path / "m.bin") as made:
        members = {one: made.read(one) for one in made.namelist()}
    (name,) = (one for one in members if one.endswith("data.pkl"))
    at = members[name].rindex(b"R") + 1  # behind the call that makes the tensor
    state = b"}X\x06\x00\x00\x00offsetK\x63sb"
    members[name] = members[name][:at] + state + members[name][at:]
    with zipfile.ZipFile(tmp_path / "forged.bin", "w") as made:
        for one, data in members.items():
            made.writestr(one, data)
    with pytest.raises(CheckpointError, match="cannot be read"):
        tensors_in_bin(tmp_path / "forged.bin")


def test_a_program_in_a_pickle_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "m.bin", pickle.dumps({"a": Runs()}))
    with pytest.raises(CheckpointError, match="it would run"):
        tensors_in_bin(tmp_path / "m.bin")
    assert not (tmp_path / "was_run").exists()


def test_what_is_no_archive_of_plain_tensors_is_an_error(write, tmp_path):
    file = tmp_path / "m.bin"
    file.write_bytes(pickle.dumps({}))
    with pytest.raises(CheckpointError, match="it is not a zip archive"):
        tensors_in_bin(file)
    archive(file, pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="a is not a tensor"):
        tensors_in_bin(file)
    write(file, {"a": np.ones((3, 4), np.float32).T})
    with pytest.raises(CheckpointError, match=r"a is stored as a view with strides \[1, 4\]"):
        tensors_in_bin(file)
    write(file, arrays(), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="its storage 0 is compressed"):
        tensors_in_bin(file)
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        tensors_in_bin(tmp_path / "none.bin")


def test_tensors_outside_of_their_bytes_are_an_error(write, tmp_path):
    tensors = {"a": np.lib.stride_tricks.as_strided(np.ones(4, np.float32), (0, 4))}
    write(tmp_path / "m.bin", tensors)
    with zipfile.ZipFile(tmp_path / "m.bin") as made:
        data = made.read("archive/data.pkl").replace(b"K\x00K\x04\x86", b"K\x09K\x04\x86")
    with zipfile.ZipFile(tmp_path / "m.bin", "w") as made:
        made.writestr("archive/data.pkl", data)
        made.writestr("archive/data/0", b"")
    with pytest.raises(CheckpointError, match="a is not within the bytes"):
        tensors_in_bin(tmp_path / "m.bin")


def test_damage_is_an_error_or_reads(write, tmp_path):
    write(tmp_path / "m.bin", arrays())
    data, random = (tmp_path / "m.bin").read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(data)
        for at in random.integers(0, len(data), 3):
            changed[at] = random.integers(0, 256)
        (tmp_path / "m.bin").write_bytes(changed[: random.integers(len(data) // 2, len(data) + 1)])
        try:
            for place in tensors_in_bin(tmp_path / "m.bin").values():
                place.read()
        except CheckpointError:
            continue
