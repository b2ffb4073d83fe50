"""Quantized tensors: read as the products of numbers and scales, and nothing else is touched."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy_state import numpy_state
from safetensors.numpy import load_file, save_file

from axcore.errors import CheckpointError
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.interop.quantized import dequantized
from axcore.interop.tensor_files import find_tensors
from axcore.models import llama2

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
        ({"quant_method": "gptq", "bits": 4}, "quantized by 'gptq'"),
        ({"quant_method": "fp8"}, "a scale for each block"),
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
