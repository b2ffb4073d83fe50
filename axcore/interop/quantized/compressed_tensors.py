"""Weights in the format of the library `compressed-tensors`, which several quantizers write.

Numbers are integers of 8 bits, integers packed into words of 32 bits, floats of 8 bits, or
NVFP4; scales are of a tensor, of rows, of groups of a row or of blocks. The library computes in the
dtype of the scales; here products are exact, and rounded once, to the dtype of the model.

Source: the library's `quantization/lifecycle/forward.py` and `compressors/`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.quantized.float4 import NVFP4_GROUP, nvfp4
from axcore.interop.quantized.float8 import FLOAT8, in_blocks
from axcore.interop.quantized.gptq import check_groups
from axcore.interop.quantized.tensors import (
    Parts,
    ScaledRows,
    Settings,
    Shape,
    Tensor,
    check_tensor,
    floats,
    from_pairs,
    ints_of_words,
    pair_table,
)
from axcore.interop.tensor_place import TensorPlace

_FORMATS = (
    "dense",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
    "mixed-precision",
)
_INTS = (np.int8, np.int16, np.int32, np.int64)


def read_compressed_tensors(parts: Parts, settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of modules with `weight_packed`, or with `weight` and `weight_scale`.

    Raises:
        CheckpointError: A format is another one, or the weights are sparse.
    """
    groups = _groups(settings)
    for name, numbers in parts.ending(".weight_packed"):
        if parts.has(f"{name}.weight_global_scale"):
            yield f"{name}.weight", _nvfp4(parts, name, numbers)
        else:
            yield f"{name}.weight", _packed(parts, name, numbers, _weights(groups, name))
    for name, scales in parts.ending(".weight_scale"):
        weight = f"{name}.weight"
        numbers = parts.take(weight, of=f"{weight}_scale")
        yield weight, _whole(parts, name, numbers, scales, _weights(groups, name))


def _groups(settings: Settings) -> list[Mapping[str, Any]]:
    """Return the groups of modules that are quantized alike.

    Raises:
        CheckpointError: One has a format that is not read.
    """
    groups = [one for one in (settings.get("config_groups") or {}).values() if one.get("weights")]
    named = {settings.get("format"), *(one.get("format") for one in groups)}
    sparse = (settings.get("sparsity_config") or {}).get("format")
    refused = sorted(name for name in {*named, sparse} if name not in (None, *_FORMATS))
    if refused:
        raise CheckpointError(
            f"the weights have the format {', '.join(refused)} of compressed-tensors; axcore reads "
            f"{', '.join(_FORMATS)}",
            where="quantization_config.format",
            hint="fetch the model in bfloat16, or in one of these",
        )
    return groups


def _weights(groups: list[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return how the weights of a module are quantized.

    Raises:
        CheckpointError: Nothing says it.
    """
    # A name or a pattern is narrower than a class, of which all of these modules are.
    for is_target in (_is_name, _is_class):
        for group in groups:
            if any(is_target(one, name) for one in group.get("targets") or ()):
                found: Mapping[str, Any] = group["weights"]
                return found
    raise CheckpointError(
        f"no group of quantization_config says how {name} is quantized",
        where="quantization_config.config_groups",
        hint="compare config.json with the one that was published",
    )


def _is_name(target: str, name: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    return name == target or name.endswith(f".{target}")


def _is_class(target: str, name: str) -> bool:
    return target[:1].isupper() and target.isidentifier()


def _whole(
    parts: Parts, name: str, numbers: TensorPlace, scales: TensorPlace, how: Mapping[str, Any]
) -> ScaledRows:
    """Return a weight that has a number of 8 bits, an integer or a float, for each of its own."""
    shape = numbers.shape if len(numbers.shape) == 2 else (-1, -1)
    check_tensor(f"{name}.weight", numbers, shape, dtypes=(*FLOAT8, np.int8))
    block = how.get("block_structure")
    if how.get("strategy") == "block" and block:
        return in_blocks(f"{name}.weight", numbers, scales, tuple(block))
    size = _group(f"{name}.weight_scale", scales, shape, how)
    zeros, zero_name = None, f"{name}.weight_zero_point"
    if parts.has(zero_name):
        zeros = partial(_rows, parts.take(zero_name, scales.shape, of=f"{name}.weight"))
    order = _order(parts, name, shape, size)
    return ScaledRows(numbers, shape, partial(_rows, scales), size, zeros, order)


def _packed(parts: Parts, name: str, numbers: TensorPlace, how: Mapping[str, Any]) -> ScaledRows:
    """Return a weight whose integers are in words of 32 bits.

    Raises:
        CheckpointError: Its numbers have other bits, or a shape is another one.
    """
    bits, of = how.get("num_bits", 0), f"{name}.weight_packed"
    if bits not in _DECODE or how.get("type", "int") != "int":
        raise CheckpointError(
            f"{name} has weights of {how.get('type')} in {bits} bits; axcore reads packed "
            f"integers of {', '.join(map(str, _DECODE))} bits",
            where="quantization_config.config_groups",
            hint="fetch the model in 4 or 8 bits, or in bfloat16",
        )
    stored = parts.take(f"{name}.weight_shape", (2,), of=of, dtypes=_INTS).read()
    shape = tuple(int(size) for size in stored)
    check_tensor(of, numbers, (shape[0], _words(shape[1], bits)), dtypes=[np.int32])
    scales = parts.take(f"{name}.weight_scale", of=of)
    size = _group(f"{name}.weight_scale", scales, shape, how)
    zeros = None
    if not how.get("symmetric", True):
        # Packed too, along the rows.
        wanted = (_words(shape[0], bits), scales.shape[1])
        found = parts.take(f"{name}.weight_zero_point", wanted, of=of, dtypes=[np.int32])
        zeros = partial(_packed_rows, found, bits, shape[0])
    order = _order(parts, name, shape, size)
    return ScaledRows(numbers, shape, partial(_rows, scales), size, zeros, order, _DECODE[bits])


def _nvfp4(parts: Parts, name: str, numbers: TensorPlace) -> ScaledRows:
    of = f"{name}.weight_packed"
    scales = parts.take(f"{name}.weight_scale", of=of)
    whole = parts.take(f"{name}.weight_global_scale", (), (1,), of=of, dtypes=[np.float32])
    return nvfp4(f"{name}.weight", numbers, scales, partial(_quotient, scales, whole))


def _quotient(scales: TensorPlace, whole: TensorPlace) -> np.ndarray:
    # The inverse of ModelOpt's, which multiplies.
    quotient: np.ndarray = floats(scales) / floats(whole).reshape(())
    return quotient


def _group(name: str, scales: TensorPlace, shape: Shape, how: Mapping[str, Any]) -> int:
    """Return how many numbers of a row have one scale.

    Raises:
        CheckpointError: The scales have another shape.
    """
    rows, columns = shape
    strategy, size = how.get("strategy"), how.get("group_size")
    if strategy in ("group", "tensor_group"):
        size = int(size or NVFP4_GROUP)
        check_tensor(name, scales, (rows, -(-columns // size)))
        return size
    if strategy not in ("tensor", "channel"):
        raise CheckpointError(
            f"{name} is of the strategy {strategy!r}; axcore reads "
            "tensor, channel, group and block",
            where="quantization_config.config_groups",
            hint="fetch the model in bfloat16",
        )
    check_tensor(name, scales, *([(rows, 1)] if strategy == "channel" else [(), (1,), (1, 1)]))
    return columns


def _order(parts: Parts, name: str, shape: Shape, size: int) -> TensorPlace | None:
    """Return the group of each column, where columns were ordered by activations."""
    index = f"{name}.weight_g_idx"
    if not parts.has(index):
        return None
    found = parts.take(index, (shape[1],), of=f"{name}.weight", dtypes=[np.int32])
    # Files of older versions have -1 everywhere where columns are in order.
    if -1 in found.read():
        return None
    check_groups(index, found, -(-shape[1] // size))
    return found


def _rows(place: TensorPlace) -> np.ndarray:
    """Return scales or zero points by row; one row where they are of all of the tensor."""
    found = floats(place)
    return found if found.ndim == 2 else found.reshape(1, 1)


def _packed_rows(place: TensorPlace, bits: int, count: int) -> np.ndarray:
    found = ints_of_words(np.ascontiguousarray(place.read().T), bits).T[:count]
    return found.astype(np.float32) - np.float32(1 << (bits - 1))


def _words(count: int, bits: int) -> int:
    return -(-count * bits // 32)


_SIGNED_PAIRS = pair_table(np.arange(-8, 8))


def _four_bits(words: np.ndarray) -> np.ndarray:
    return from_pairs(words.view(np.uint8), _SIGNED_PAIRS)


def _eight_bits(words: np.ndarray) -> np.ndarray:
    # The highest bit turned is 128 less, as int8 reads it.
    return (words.view(np.uint8) ^ 128).view(np.int8)


_DECODE: dict[int, Callable[[np.ndarray], np.ndarray]] = {4: _four_bits, 8: _eight_bits}
"""From words to numbers, by bits; each number is stored with half of their range added."""
