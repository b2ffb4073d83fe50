"""Quantized tensors are dequantized to the numbers that libraries make of them."""

import ml_dtypes
import numpy as np
import pytest
from quantized_folders import FORMATS, stored_as
from safetensors.numpy import save_file

from axcore.interop.quantized import dequantized
from axcore.interop.tensor_files import find_tensors

pytestmark = pytest.mark.parity


def test_blocks_of_eight_bits(tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    random = np.random.default_rng(0)
    numbers = random.normal(size=(64, 96)).astype(ml_dtypes.float8_e4m3fn)
    scales = random.random((4, 3), np.float32)
    stored = {"weight": numbers, "weight_scale_inv": scales}
    save_file(stored, tmp_path / "model.safetensors")
    settings = {"quant_method": "fp8", "weight_block_size": [16, 32]}
    axcore = dequantized(find_tensors(tmp_path), settings)["weight"].read()
    kind = transformers.integrations.finegrained_fp8.Fp8Dequantize
    bits = torch.from_numpy(numbers.view(np.uint8)).view(torch.float8_e4m3fn)
    hf = kind(None)._dequantize_one(bits, torch.from_numpy(scales))
    assert np.array_equal(axcore, hf.numpy())


def test_blocks_of_four_bits(tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (3, 5, 2, 16)).astype(np.uint8)
    scales = random.integers(100, 140, (3, 5, 2)).astype(np.uint8)
    save_file({"up_blocks": blocks, "up_scales": scales}, tmp_path / "model.safetensors")
    axcore = dequantized(find_tensors(tmp_path), {"quant_method": "mxfp4"})["up"].read()
    hf = transformers.integrations.mxfp4.convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    )
    assert np.array_equal(axcore, hf.numpy())


SHAPE = (96, 128)


def as_torch(torch, array):
    if array.dtype == ml_dtypes.float8_e4m3fn:
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def read(tmp_path, stored, settings):
    save_file({f"up.{part}": one for part, one in stored.items()}, tmp_path / "model.safetensors")
    return dequantized(find_tensors(tmp_path), settings)["up.weight"].read()


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("compressed-")])
def test_compressed_tensors_decompresses_the_same(name, tmp_path):
    """In float32; the library computes in the dtype of the scales, and would round twice."""
    library = pytest.importorskip("compressed_tensors", reason="run make parity")
    import torch
    from compressed_tensors.compressors.base import BaseCompressor

    if name == "compressed-ordered":
        pytest.skip("versions of the library that order columns are from before its 0.14")
    stored, _, settings = stored_as(name, SHAPE)
    weights = settings["config_groups"]["group_0"]["weights"]
    if name == "compressed-of-rows":
        weights = {key: one for key, one in weights.items() if key != "group_size"}
    args = library.quantization.QuantizationArgs(**weights)
    scheme = library.quantization.QuantizationScheme(targets=["Linear"], weights=args)
    if stored["weight_scale"].dtype == ml_dtypes.bfloat16:
        stored["weight_scale"] = stored["weight_scale"].astype(np.float32)
    state = {part: as_torch(torch, one) for part, one in stored.items()}
    compressor = BaseCompressor.get_value_from_registry(settings["format"])
    expected = compressor.decompress(state, scheme)["weight"].float().numpy()
    found = read(tmp_path, stored, settings)
    # NVFP4's library rounds its scales to bfloat16 first.
    atol = 2**-8 * np.abs(expected) if name == "compressed-nvfp4" else 0.0
    assert (np.abs(found - expected) <= atol).all()


@pytest.mark.parametrize("name", ["nf4", "nf4-nested"])
def test_bitsandbytes_dequantizes_the_same(name, tmp_path):
    pytest.importorskip("bitsandbytes", reason="run make parity")
    import torch
    from bitsandbytes.functional import QuantState, dequantize_4bit, quantize_4bit

    weight = torch.from_numpy(np.random.default_rng(0).normal(size=SHAPE).astype(np.float32))
    numbers, state = quantize_4bit(weight, quant_type="nf4", compress_statistics="nested" in name)
    stored = {"weight": numbers.numpy()}
    stored |= {f"weight.{part}": one.numpy() for part, one in state.as_dict(packed=True).items()}
    own = {part: as_torch(torch, one) for part, one in stored.items() if part != "weight"}
    expected = dequantize_4bit(numbers, QuantState.from_dict(own, device="cpu"))
    found = read(tmp_path, stored, {"quant_method": "bitsandbytes"})
    assert np.array_equal(found, expected.numpy())


def test_bitsandbytes_dequantizes_eight_bits_the_same(tmp_path):
    pytest.importorskip("bitsandbytes", reason="run make parity")
    import torch

    stored, _, settings = stored_as("eight-bits", SHAPE)
    numbers, largest = torch.from_numpy(stored["weight"]), torch.from_numpy(stored["SCB"])
    expected = torch.ops.bitsandbytes.int8_vectorwise_dequant(numbers, largest)
    assert np.array_equal(read(tmp_path, stored, settings), expected.numpy())
