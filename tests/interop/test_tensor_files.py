"""A safetensors file is read where the reference library reads it, and else refused by name."""

import json
import os
import struct

import numpy as np
import pytest
from counts import count
from safetensors import SafetensorError
from safetensors.numpy import load, save

from axcore.errors import CheckpointError
from axcore.interop.tensor_files import tensors_in

GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
NEXT = {**GOOD, "data_offsets": [8, 16]}


def entries(**tensors):
    return json.dumps(tensors).encode()


BAD = {
    "an overlap": (entries(a=GOOD, b={**GOOD, "data_offsets": [4, 12]}), 12),
    "the same place twice": (entries(a=GOOD, b=GOOD), 8),
    "a hole": (entries(a=GOOD, b={**GOOD, "data_offsets": [12, 20]}), 20),
    "a hole at the start": (entries(a=NEXT), 16),
    "negative offsets": (entries(a={**GOOD, "data_offsets": [-8, 0]}, b=GOOD), 8),
    "offsets that go back": (entries(a={**GOOD, "data_offsets": [8, 0]}), 8),
    "one offset": (entries(a={**GOOD, "data_offsets": [8]}), 8),
    "three offsets": (entries(a={**GOOD, "data_offsets": [0, 8, 8]}), 8),
    "offsets of text": (entries(a={**GOOD, "data_offsets": ["0", "8"]}), 8),
    "offsets of floats": (entries(a={**GOOD, "data_offsets": [0.0, 8.0]}), 8),
    "an offset of 2**70": (entries(a={**GOOD, "data_offsets": [2**70, 2**70 + 8]}), 8),
    "no offsets": (entries(a={"dtype": "F32", "shape": [2]}), 8),
    "another size": (entries(a={**GOOD, "shape": [3]}), 8),
    "another dtype": (entries(a={**GOOD, "dtype": "F64"}), 8),
    "an unknown dtype": (entries(a={**GOOD, "dtype": "F128"}), 8),
    "a dtype that is a list": (entries(a={**GOOD, "dtype": ["F32"]}), 8),
    "no dtype": (entries(a={"shape": [2], "data_offsets": [0, 8]}), 8),
    "a negative shape": (entries(a={**GOOD, "shape": [-1, -2]}), 8),
    "a shape of floats": (entries(a={**GOOD, "shape": [2.0]}), 8),
    "a shape of truths": (entries(a={**GOOD, "shape": [True, 2]}), 8),
    "a shape that is a number": (entries(a={**GOOD, "shape": 2}), 8),
    "a shape beyond 64 bits": (entries(a={**GOOD, "shape": [2**40, 2**40]}), 8),
    "no shape": (entries(a={"dtype": "F32", "data_offsets": [0, 8]}), 8),
    "a tensor that is a number": (entries(a=1), 0),
    "a tensor that is a list": (entries(a=[1]), 0),
    "metadata that is a list": (entries(__metadata__=[1], a=GOOD), 8),
    "metadata of numbers": (entries(__metadata__={"a": 1}, a=GOOD), 8),
    "a header that is a list": (b"[1]", 0),
    "a header that is a number": (b"1", 0),
    "a header that is empty": (b"", 0),
    "a header that is cut": (entries(a=GOOD)[:-1], 8),
    "a header that is not UTF-8": (b'{"\xff": 1}', 0),
    "a header of brackets": (b'{"a":' + b"[" * 100_000, 0),
    "a key of a tensor twice": (b'{"a": {"dtype": "F32", "dtype": "F32"}}', 0),
    "too few bytes": (entries(a=GOOD), 7),
    "too many bytes": (entries(a=GOOD), 9),
}


def framed(header, num_bytes):
    return struct.pack("<Q", len(header)) + header + bytes(num_bytes)


@pytest.mark.parametrize("name", BAD)
def test_what_the_reference_library_refuses_is_refused_by_name(name, tmp_path):
    path, data = tmp_path / "model.safetensors", framed(*BAD[name])
    path.write_bytes(data)
    with pytest.raises(SafetensorError):
        load(data)
    try:
        said = repr(tensors_in(path))
    except CheckpointError as error:
        said = str(error)
    is_refused = "model.safetensors cannot be read: " in said
    count("hostile files refused by name", int(is_refused), 1)
    assert is_refused, said


def test_a_header_begins_with_its_object_as_the_format_says(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(framed(b" " + entries(a=GOOD), 8))
    with pytest.raises(CheckpointError, match="its header begins with b' "):
        tensors_in(path)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 100_000_001) + b"{}"])
def test_a_length_of_the_header_that_cannot_be_is_refused_by_name(data, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"its header|the length of its header"):
        tensors_in(path)


def test_many_names_that_are_twice_are_refused_at_once(tmp_path):
    """A search through all names for each of them takes minutes here."""
    tensor = json.dumps({**GOOD, "shape": [0], "data_offsets": [0, 0]})
    names = [f'"{i % 20_000}": {tensor}' for i in range(40_000)]
    path = tmp_path / "model.safetensors"
    path.write_bytes(framed(f"{{{','.join(names)}}}".encode(), 0))
    with pytest.raises(CheckpointError, match="the key '0' is twice"):
        tensors_in(path)


def test_what_the_reference_library_writes_is_read_in_any_order_of_names(tmp_path):
    tensors = {"z": np.ones((2, 3), np.int8), "a": np.ones((), np.float64), "empty": np.ones((0,))}
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(tensors, {"format": "np"}))
    found = tensors_in(path)
    assert found.keys() == tensors.keys()
    for name, place in found.items():
        np.testing.assert_array_equal(place.read(), tensors[name])


def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="it is a FIFO, not a regular file"):
        tensors_in(tmp_path / "model.safetensors")
