"""Weights in floats of eight bits: `fp8` and `fbgemm_fp8`.

Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2 (scales of blocks); the loaders of
`FineGrainedFP8` and `FbgemmFp8` in transformers.
"""

from collections.abc import Iterator
from functools import partial

import jax.numpy as jnp
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.quantized.tensors import (
    Parts,
    ScaledRows,
    Settings,
    Shape,
    Tensor,
    check_tensor,
    floats,
)
from axcore.interop.tensor_place import TensorPlace

FLOAT8 = (jnp.float8_e4m3fn, jnp.float8_e5m2)


def read_float8(parts: Parts, settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with a scale for each block, or one for the tensor or for each row.

    Scales are `NAME_scale_inv`, or `NAME_scale` where one program of several wrote them; numbers
    are multiplied by both.
    """
    block = settings.get("weight_block_size")
    # Of the shorter ending only weights: models have scales of their own.
    for suffix, stem in (("_scale_inv", ""), ("weight_scale", "weight")):
        for start, scales in parts.ending(suffix):
            name = f"{start}{stem}"
            numbers = parts.take(name, of=f"{start}{suffix}")
            yield (
                name,
                (
                    in_blocks(name, numbers, scales, tuple(block))
                    if block
                    else in_rows(name, numbers, scales)
                ),
            )


def read_fbgemm(parts: Parts, settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with a scale for each row."""
    for name, scales in parts.ending(".weight_scale"):
        weight = f"{name}.weight"
        yield weight, in_rows(weight, parts.take(weight, of=f"{weight}_scale"), scales)


def in_rows(name: str, numbers: TensorPlace, scales: TensorPlace) -> ScaledRows:
    """Return a matrix of eight-bit floats with one scale, or one for each row.

    Raises:
        CheckpointError: It has no such numbers, or other scales.
    """
    _check_matrix(name, numbers)
    rows, columns = numbers.shape
    check_tensor(f"{name}'s scale", scales, (), (1,), (1, 1), (rows,), (rows, 1))
    return ScaledRows(numbers, numbers.shape, partial(_column, scales), columns)


def _column(scales: TensorPlace) -> np.ndarray:
    return floats(scales).reshape(-1, 1)


def in_blocks(
    name: str, numbers: TensorPlace, scales: TensorPlace, block: tuple[int, ...]
) -> ScaledRows:
    """Return a matrix of eight-bit floats with a scale for each block, ragged at the ends.

    Raises:
        CheckpointError: It has no such numbers, or scales of other blocks.
    """
    wanted = tuple(-(-size // of) for size, of in zip(numbers.shape, block, strict=False))
    if len(numbers.shape) != 2 or scales.shape != wanted or numbers.dtype not in FLOAT8:
        raise CheckpointError(
            f"{name} has {numbers.dtype} of shape {list(numbers.shape)} and scales of shape "
            f"{list(scales.shape)}; blocks of {list(block)} want eight bits, and {list(wanted)}",
            where=str(numbers.file),
            hint="compare quantization_config with the one that was published",
        )
    rows, columns = block
    return ScaledRows(
        numbers, numbers.shape, partial(_rows_of_blocks, scales, rows, numbers.shape), columns
    )


def _rows_of_blocks(scales: TensorPlace, rows: int, shape: Shape) -> np.ndarray:
    # A scale for each row and block of columns is small; one for each number is not made.
    return np.repeat(floats(scales), rows, axis=0)[: shape[0]]


def _check_matrix(name: str, numbers: TensorPlace) -> None:
    """Check that a tensor is a matrix of eight-bit floats.

    Raises:
        CheckpointError: It is not.
    """
    if len(numbers.shape) != 2 or numbers.dtype not in FLOAT8:
        raise CheckpointError(
            f"{name} has {numbers.dtype} of shape {list(numbers.shape)}, and a scale; the format "
            "has matrices of eight-bit floats",
            where=str(numbers.file),
            hint="fetch the files again",
        )
