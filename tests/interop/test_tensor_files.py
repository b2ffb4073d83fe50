"""A safetensors file is read where the reference library reads it, and else refused by name."""

import json
import os
import struct

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from counts import count
from numpy_state import numpy_state
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save, save_file

from axcore.errors import CheckpointError
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.interop.quantized import dequantized
from axcore.interop.tensor_files import find_tensors, tensors_in
from axcore.models import llama2

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


BLOCK = (48, 40)
"""No divisor of 64 or 96, so that blocks at the ends are smaller."""


def in_blocks(weight):
    """Returns eight-bit numbers of a matrix, the scale of each block, and their products."""
    numbers = np.empty(weight.shape, ml_dtypes.float8_e4m3fn)
    scales = np.empty([-(-n // b) for n, b in zip(weight.shape, BLOCK, strict=True)], np.float32)
    means = np.empty(weight.shape, np.float32)
    for i, j in np.ndindex(*scales.shape):
        place = tuple(slice(n * b, (n + 1) * b) for n, b in zip((i, j), BLOCK, strict=True))
        scales[i, j] = np.abs(weight[place]).max() / 448.0
        numbers[place] = (weight[place] / scales[i, j]).astype(numbers.dtype)
        means[place] = numbers[place].astype(np.float32) * scales[i, j]
    return numbers, scales, means


def quantize(folder, settings):
    """Quantizes all projections of layers, and returns what each tensor is to be read as."""
    file = folder / "model.safetensors"
    stored, means = {}, {}
    for name, tensor in load_file(file).items():
        stored[name] = means[name] = tensor
        if name.endswith("_proj.weight"):
            stored[name], stored[f"{name}_scale_inv"], means[name] = in_blocks(tensor)
    save_file(stored, file)
    content = json.loads((folder / "config.json").read_text())
    content["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(content))
    return means


@pytest.fixture
def folder(tmp_path):
    cfg = llama2("toy")
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "model", cfg, state)
    return tmp_path / "model"


def test_blocks_of_eight_bits_are_read_as_numbers_times_scales(folder, tmp_path):
    means = quantize(folder, {"quant_method": "fp8", "weight_block_size": BLOCK})
    with pytest.warns(UserWarning, match=r"quantized \(FP8\); they are dequantized to float32"):
        read = from_hugging_face(folder)
    to_hugging_face(tmp_path / "plain", read.config, read.state)
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    assert plain.keys() == means.keys()
    for name, mean in means.items():
        assert np.array_equal(plain[name], mean), name


def test_scales_of_other_blocks_are_an_error(folder):
    quantize(folder, {"quant_method": "fp8", "weight_block_size": [16, 16]})
    with pytest.raises(CheckpointError, match=r"scales of shape \[2, 3\]; blocks of \[16, 16\]"):
        from_hugging_face(folder)


def test_numbers_without_their_scales_are_an_error(folder):
    settings = {"quant_method": "fp8", "weight_block_size": BLOCK}
    quantize(folder, settings)
    tensors = find_tensors(folder)
    del tensors["model.layers.1.self_attn.q_proj.weight_scale_inv"]
    with pytest.raises(
        CheckpointError, match=r"layers\.1.*q_proj\.weight has float8.* no .*_scale_"
    ):
        dequantized(tensors, settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "aqlm", "bits": 4}, "quantized by 'aqlm'"),
        ({"quant_method": "fp8"}, r"scale has float32 of shape \[2, 3\]"),
    ],
)
def test_what_nothing_here_reads_is_an_error_by_name(folder, settings, words):
    quantize(folder, settings)
    with pytest.raises(CheckpointError, match=words):
        from_hugging_face(folder)


def test_four_bits_are_read_as_numbers_times_powers_of_two(tmp_path):
    """Three experts of five rows with two blocks each, by the dtypes of the formats themselves."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 256, (3, 5, 2, 16)).astype(np.uint8)
    exponents = random.integers(100, 140, (3, 5, 2)).astype(np.uint8)
    plain = np.ones(3, np.float32)
    stored = {"up_blocks": numbers, "up_scales": exponents, "up_bias": plain, "x_scales": plain}
    save_file(stored, tmp_path / "model.safetensors")
    found = dequantized(find_tensors(tmp_path), {"quant_method": "mxfp4"})
    assert found.keys() == {"up", "up_bias", "x_scales"}
    halves = np.stack([numbers & 15, numbers >> 4], axis=-1).view(ml_dtypes.float4_e2m1fn)
    scales = exponents.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    rows = halves.astype(np.float32).reshape(3, 5, 2, 32) * scales[..., None]
    read = found["up"].read()
    assert found["up"].shape == read.shape == (3, 64, 5)
    assert np.array_equal(read, rows.reshape(3, 5, 64).swapaxes(1, 2))


def test_four_bits_without_a_scale_for_each_block_are_an_error(tmp_path):
    stored = {"up_blocks": np.ones((5, 2, 16), np.uint8), "up_scales": np.ones((5, 1), np.uint8)}
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"up_blocks has .* scales uint8 of shape \[5, 1\]"):
        dequantized(find_tensors(tmp_path), {"quant_method": "mxfp4"})
