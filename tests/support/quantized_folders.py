"""Weights as programs that quantize them store them, and what each format says that they mean.

Codes, scales and zero points are random. What they mean is the format's formula, written plainly,
number by number where that is cheap, and in float32.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
NF4 = np.linspace(-1.0, 1.0, 16, dtype=np.float32) ** 3
Stored = dict[str, np.ndarray]


def packed(numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Packs numbers of rows into words of 32 bits, in an order within each word."""
    count = 32 // bits
    order = order or tuple(range(count))
    words = np.zeros((len(numbers), -(-numbers.shape[1] // count)), np.uint32)
    for column in range(numbers.shape[1]):
        place = bits * order.index(column % count)
        words[:, column // count] |= numbers[:, column].astype(np.uint32) << np.uint32(place)
    return words.view(np.int32)


def scales(random: Any, *shape: int, dtype: Any = np.float16) -> np.ndarray:
    return (random.random(shape) * 0.02 + 0.001).astype(dtype)


def gptq(random: Any, shape: tuple[int, int], *, bits: int, size: int, is_ordered: bool, v2: bool):
    rows, columns = shape
    mask, groups = (1 << bits) - 1, -(-columns // size)
    numbers = random.integers(0, mask + 1, (columns, rows))
    zeros = random.integers(0, mask + 1, (groups, rows))
    scale = scales(random, groups, rows)
    group_of = np.arange(columns) // size
    if not is_ordered:
        group_of = random.permutation(group_of)
    stored = {
        "qweight": np.ascontiguousarray(packed(numbers.T, bits).T),
        "qzeros": packed(zeros if v2 else (zeros - 1) & mask, bits),
        "scales": scale,
        "g_idx": group_of.astype(np.int32),
    }
    means = scale.astype(np.float32)[group_of] * (numbers - zeros[group_of]).astype(np.float32)
    settings = {"bits": bits, "group_size": size, "desc_act": not is_ordered}
    settings["checkpoint_format"] = "gptq_v2" if v2 else "gptq"
    return stored, means.T, {"quant_method": "gptq", **settings}


def awq(random: Any, shape: tuple[int, int]):
    rows, columns = shape
    size = 32
    numbers = random.integers(0, 16, (columns, rows))
    zeros = random.integers(0, 16, (columns // size, rows))
    scale = scales(random, columns // size, rows)
    stored = {
        "qweight": packed(numbers, 4, AWQ_ORDER),
        "qzeros": packed(zeros, 4, AWQ_ORDER),
        "scales": scale,
    }
    group_of = np.arange(columns) // size
    means = (numbers - zeros[group_of]).astype(np.float32) * scale.astype(np.float32)[group_of]
    settings = {"bits": 4, "group_size": size, "version": "gemm", "zero_point": True}
    return stored, means.T, {"quant_method": "awq", **settings}


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def packed_ints(
    random: Any, shape: tuple[int, int], *, bits: int, size: int, symmetric: bool, ordered: bool
):
    rows, columns = shape
    half, groups = 1 << (bits - 1), -(-columns // size)
    numbers = random.integers(-half, half, shape)
    zeros = np.zeros((rows, groups), np.int64)
    if not symmetric:
        zeros = random.integers(-half, half, (rows, groups))
    scale = scales(random, rows, groups, dtype=ml_dtypes.bfloat16)
    group_of = np.arange(columns) // size
    if not ordered:
        group_of = random.permutation(group_of)
    stored = {
        "weight_packed": packed(numbers + half, bits),
        "weight_scale": scale,
        "weight_shape": np.array(shape, np.int64),
    }
    if not symmetric:
        stored["weight_zero_point"] = np.ascontiguousarray(packed((zeros + half).T, bits).T)
    if not ordered:
        stored["weight_g_idx"] = group_of.astype(np.int32)
    means = (numbers - zeros[:, group_of]).astype(np.float32)
    means *= scale.astype(np.float32)[:, group_of]
    strategy = {"strategy": "channel"} if groups == 1 else {"strategy": "group"}
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy}
    return stored, means, _compressed("pack-quantized", **weights, group_size=size)


def whole_ints(random: Any, shape: tuple[int, int], *, symmetric: bool):
    numbers = random.integers(-128, 128, shape)
    zeros = random.integers(-128, 128, (shape[0], 1))
    scale = scales(random, shape[0], 1, dtype=np.float32)
    stored = {"weight": numbers.astype(np.int8), "weight_scale": scale}
    if not symmetric:
        stored["weight_zero_point"] = zeros.astype(np.int8)
    means = (numbers - (0 if symmetric else zeros)).astype(np.float32) * scale
    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": "channel"}
    return stored, means, _compressed("int-quantized", **weights)


def _float8(random: Any, shape: tuple[int, int]) -> np.ndarray:
    return random.normal(size=shape).astype(ml_dtypes.float8_e4m3fn)


def float8(random: Any, shape: tuple[int, int], *, strategy: str):
    numbers = _float8(random, shape)
    of_rows = strategy == "channel"
    scale = scales(random, *((shape[0], 1) if of_rows else (1,)), dtype=ml_dtypes.bfloat16)
    stored = {"weight": numbers, "weight_scale": scale, "input_scale": np.ones(1, np.float32)}
    means = numbers.astype(np.float32) * scale.astype(np.float32)
    return (
        stored,
        means,
        _compressed("float-quantized", num_bits=8, type="float", strategy=strategy),
    )


def blocks_of_float8(random: Any, shape: tuple[int, int]):
    rows, columns = 32, 48  # which divides no width here, so that blocks at the end are smaller
    numbers = _float8(random, shape)
    scale = scales(random, -(-shape[0] // rows), -(-shape[1] // columns), dtype=np.float32)
    wide = np.repeat(np.repeat(scale, rows, axis=0), columns, axis=1)[: shape[0], : shape[1]]
    weights = {"num_bits": 8, "type": "float", "strategy": "block"}
    settings = _compressed("float-quantized", **weights, block_structure=[rows, columns])
    stored = {"weight": numbers, "weight_scale": scale}
    return stored, numbers.astype(np.float32) * wide, settings


def static_float8(random: Any, shape: tuple[int, int]):
    numbers, scale = _float8(random, shape), np.float32(random.random())
    stored = {"weight": numbers, "weight_scale": np.array(scale), "input_scale": np.array(scale)}
    settings = {"quant_method": "fp8", "activation_scheme": "static"}
    return stored, numbers.astype(np.float32) * scale, settings


def fbgemm(random: Any, shape: tuple[int, int]):
    numbers, scale = _float8(random, shape), scales(random, shape[0], 1, dtype=np.float32)
    stored = {"weight": numbers, "weight_scale": scale}
    settings = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}
    return stored, numbers.astype(np.float32) * scale, settings


def _four_bits(random: Any, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns bytes of two four-bit floats, the first in the low half, and what they mean."""
    codes = random.integers(0, 16, shape)
    means = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), means


def modelopt(random: Any, shape: tuple[int, int]):
    numbers, means = _four_bits(random, shape)
    scale = (random.random((shape[0], shape[1] // 16)) * 400).astype(ml_dtypes.float8_e4m3fn)
    whole = np.float32(random.random() * 1e-3)
    stored = {"weight": numbers, "weight_scale": scale, "weight_scale_2": np.array(whole)}
    means = means * np.repeat(scale.astype(np.float32) * whole, 16, axis=1)
    return stored, means, {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def packed_nvfp4(random: Any, shape: tuple[int, int]):
    numbers, means = _four_bits(random, shape)
    scale = (random.random((shape[0], shape[1] // 16)) * 400).astype(ml_dtypes.float8_e4m3fn)
    whole = np.float32(random.random() * 1e3 + 1)
    stored = {
        "weight_packed": numbers,
        "weight_scale": scale,
        "weight_global_scale": np.array([whole]),
    }
    means = means * np.repeat(scale.astype(np.float32) / whole, 16, axis=1)
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    return stored, means, _compressed("nvfp4-pack-quantized", **weights)


def normal_floats(random: Any, shape: tuple[int, int], *, is_nested: bool):
    """Blocks of 64 codes; where nested, 256 of their magnitudes are a block of codes again."""
    count = shape[0] * shape[1]
    codes, num_blocks = random.integers(0, 16, count), count // 64
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16"}
    state["shape"] = list(shape)
    stored = {
        "weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None],
        "weight.quant_map": NF4,
    }
    largest = scales(random, num_blocks, dtype=np.float32)
    stored["weight.absmax"] = largest
    if is_nested:
        table = random.normal(size=256).astype(np.float32)
        numbers = random.integers(0, 256, num_blocks)
        outer = scales(random, -(-num_blocks // 256), dtype=np.float32)
        offset = np.float32(0.04)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.04}
        stored["weight.absmax"] = numbers.astype(np.uint8)
        stored["weight.nested_absmax"], stored["weight.nested_quant_map"] = outer, table
        largest = table[numbers] * np.repeat(outer, 256)[:num_blocks] + offset
    blob = np.frombuffer(json.dumps(state).encode(), np.uint8)
    stored["weight.quant_state.bitsandbytes__nf4"] = blob
    means = NF4[codes].reshape(-1, 64) * largest[:, None]
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    return stored, means.reshape(shape), settings


def rows_of_bytes(random: Any, shape: tuple[int, int]):
    numbers = random.integers(-127, 128, shape).astype(np.int8)
    largest = scales(random, shape[0], dtype=np.float32)
    stored = {"weight": numbers, "SCB": largest, "weight_format": np.array(0, np.uint8)}
    means = (numbers.astype(np.float32) * largest[:, None]) * np.float32(7.874015718698502e-3)
    return stored, means, {"quant_method": "bitsandbytes", "load_in_8bit": True}


_INTS: dict[str, Any] = {"bits": 4, "size": 32, "symmetric": True, "ordered": True}
_GPTQ: dict[str, Any] = {"bits": 4, "size": 32, "is_ordered": True, "v2": False}
FORMATS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gptq": (gptq, _GPTQ),
    "gptq-8-bits": (gptq, {**_GPTQ, "bits": 8}),
    "gptq-ordered-by-activations": (gptq, {**_GPTQ, "is_ordered": False}),
    "gptq-v2": (gptq, {**_GPTQ, "v2": True}),
    "awq": (awq, {}),
    "compressed-ints": (packed_ints, _INTS),
    "compressed-8-bits": (packed_ints, {**_INTS, "bits": 8}),
    "compressed-of-rows": (packed_ints, {**_INTS, "size": 1 << 20}),
    "compressed-with-zeros": (packed_ints, {**_INTS, "symmetric": False}),
    "compressed-ordered": (packed_ints, {**_INTS, "ordered": False, "symmetric": False}),
    "compressed-int8": (whole_ints, {"symmetric": True}),
    "compressed-int8-with-zeros": (whole_ints, {"symmetric": False}),
    "compressed-float8-of-rows": (float8, {"strategy": "channel"}),
    "compressed-float8-of-blocks": (blocks_of_float8, {}),
    "compressed-float8": (float8, {"strategy": "tensor"}),
    "compressed-nvfp4": (packed_nvfp4, {}),
    "float8": (static_float8, {}),
    "fbgemm": (fbgemm, {}),
    "modelopt": (modelopt, {}),
    "nf4": (normal_floats, {"is_nested": False}),
    "nf4-nested": (normal_floats, {"is_nested": True}),
    "eight-bits": (rows_of_bytes, {}),
}
"""How each format stores a matrix, with settings."""


def stored_as(name: str, shape: tuple[int, int], seed: int = 0):
    """Returns the tensors of a module, what its weight means, and the settings of the format."""
    make, kept = FORMATS[name]
    return make(np.random.default_rng(seed), shape, **kept)


def quantize_folder(name: str, folder: Path, plain: Path) -> None:
    """Quantizes the projections of a folder's layers; writes what they mean into another folder."""
    found, means = load_file(folder / "model.safetensors"), {}
    tensors: Stored = {}
    settings: dict[str, Any] = {}
    for i, (weight, tensor) in enumerate(found.items()):
        tensors[weight] = means[weight] = tensor
        if weight.endswith("_proj.weight"):
            del tensors[weight]
            own, means[weight], settings = stored_as(name, tensor.shape, seed=i)
            tensors |= {weight.removesuffix("weight") + part: array for part, array in own.items()}
    plain.mkdir()
    content = json.loads((folder / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(content))
    save_file(
        {key: np.ascontiguousarray(array) for key, array in means.items()},
        plain / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({**content, "quantization_config": settings}))
    save_file(tensors, folder / "model.safetensors")
