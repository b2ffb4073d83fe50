"""Quantized tensors are dequantized to the numbers that transformers makes of them."""

import ml_dtypes
import numpy as np
import pytest
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
