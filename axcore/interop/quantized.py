"""Quantized tensors of pretrained checkpoints, dequantized as they are read.

Numbers are float32 as they are read: the products of stored numbers and their scales, not rounded.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np

from axcore.config import suggest_names
from axcore.errors import CheckpointError
from axcore.interop.tensor_files import TensorPlace


class Tensor(Protocol):
    """A tensor of a pretrained checkpoint, as it is stored or dequantized."""

    @property
    def file(self) -> Path:
        """The file that contains it."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    def read(self) -> np.ndarray:
        """Return it."""


@attrs.frozen
class _BlockScaled:
    """A matrix of eight-bit floats with one scale for each of its blocks, ragged at the ends.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2.

    Args:
        numbers: The matrix.
        scales: What numbers are multiplied by, one a block.
        block: Rows and columns of a block.
    """

    numbers: TensorPlace
    scales: TensorPlace
    block: tuple[int, int]

    dtype = np.dtype(np.float32)

    @property
    def file(self) -> Path:
        """The file that contains the numbers."""
        return self.numbers.file

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        return self.numbers.shape

    def read(self) -> np.ndarray:
        """Return the products of numbers and scales."""
        rows, columns = self.block
        # A table of all 256 values: numpy has no arithmetic for
        # eight-bit floats, and looking up is faster than casting.
        values = np.arange(256, dtype=np.uint8).view(self.numbers.dtype).astype(np.float32)
        scales = self.scales.read().astype(np.float32)
        whole: np.ndarray = values[self.numbers.read().view(np.uint8)]
        # Row of blocks by row of blocks, so that no array of scales of the full size is made.
        for i, scale in enumerate(scales):
            whole[i * rows : (i + 1) * rows] *= np.repeat(scale, columns)[: self.shape[1]]
        return whole


@attrs.frozen
class _Microscaled:
    """Matrices of four-bit floats, each 32 of a row with a power of two for their scale.

    What is read has rows and columns swapped: inputs before outputs, as the models that are
    published so have them elsewhere.

    Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification" 1.0, section 5.

    Args:
        numbers: `[..., rows, blocks, 16]`: two numbers a byte, the first one in its low half.
        exponents: `[..., rows, blocks]`: 127 for a scale of one.
    """

    numbers: TensorPlace
    exponents: TensorPlace

    dtype = np.dtype(np.float32)

    @property
    def file(self) -> Path:
        """The file that contains the numbers."""
        return self.numbers.file

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what is read."""
        *rest, rows, blocks, num_bytes = self.numbers.shape
        return (*rest, 2 * blocks * num_bytes, rows)

    def read(self) -> np.ndarray:
        """Return the products of numbers and scales."""
        pairs: np.ndarray = _FOUR_BITS[self.numbers.read()]
        # ldexp, since a power of two is exact in it; exponents are biased as float32's are.
        scales = np.ldexp(np.float32(1.0), self.exponents.read().astype(np.int32) - 127)
        pairs *= scales[..., None, None]
        return pairs.reshape(*self.exponents.shape[:-1], -1).swapaxes(-1, -2)


_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = np.array([*_POSITIVE, *(-one for one in _POSITIVE)], np.float32)
# Two numbers for each byte, by one look-up: the low half is the first.
_FOUR_BITS = np.stack([np.tile(_NUMBERS, 16), np.repeat(_NUMBERS, 16)], axis=-1)
"""The two numbers of each byte."""


def dequantized(
    tensors: Mapping[str, TensorPlace], settings: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return tensors, quantized ones as what they are dequantized to.

    Args:
        tensors: All tensors, by name.
        settings: `quantization_config` of `config.json`.

    Raises:
        CheckpointError: Nothing here reads such tensors.
    """
    method = settings.get("quant_method")
    if method not in _FORMATS:
        raise CheckpointError(
            f"the weights are quantized by {method!r}; {suggest_names(str(method), _FORMATS)}",
            where="quantization_config",
            hint="fetch the model in bfloat16",
        )
    return _FORMATS[method](tensors, settings)


def _in_blocks(
    tensors: Mapping[str, TensorPlace], settings: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors of a model with `weight` and `weight_scale_inv` in its linear layers."""
    block = settings.get("weight_block_size")
    if not block:
        raise CheckpointError(
            "weights in eight bits are read with a scale for each block, not for each tensor",
            where="quantization_config.weight_block_size",
        )
    found: dict[str, Tensor] = {}
    for name, place in tensors.items():
        scales = tensors.get(f"{name}_scale_inv")
        if scales is not None:
            found[name] = _block_scaled(name, place, scales, tuple(block))
        # A float of eight bits means nothing without its scale;
        # taken as it is, the model would answer nonsense.
        elif place.dtype.itemsize == 1 and place.dtype.kind not in "biu":
            raise CheckpointError(
                f"{name} has {place.dtype} and no {name}_scale_inv, so that its numbers mean "
                "nothing",
                where=str(place.file),
                hint="fetch the files again",
            )
        elif not name.endswith("_scale_inv"):
            found[name] = place
    return found


def _block_scaled(
    name: str, numbers: TensorPlace, scales: TensorPlace, block: tuple[int, int]
) -> _BlockScaled:
    wanted = tuple(-(-size // of) for size, of in zip(numbers.shape, block, strict=False))
    if len(numbers.shape) != 2 or scales.shape != wanted or numbers.dtype.itemsize != 1:
        raise CheckpointError(
            f"{name} has {numbers.dtype} of shape {list(numbers.shape)} and scales of shape "
            f"{list(scales.shape)}; blocks of {list(block)} want eight bits, and {list(wanted)}",
            where=str(numbers.file),
        )
    return _BlockScaled(numbers, scales, block)


def _microscaled(
    tensors: Mapping[str, TensorPlace], settings: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the tensors of a model with `NAME_blocks` and `NAME_scales`."""
    found: dict[str, Tensor] = {}
    for name, place in tensors.items():
        whole, _, part = name.rpartition("_")
        scales = tensors.get(f"{whole}_scales")
        if part == "blocks" and scales is not None:
            if scales.shape != place.shape[:-1] or {place.dtype, scales.dtype} != {_BYTE}:
                raise CheckpointError(
                    f"{name} has {place.dtype} of shape {list(place.shape)} and scales "
                    f"{scales.dtype} of shape {list(scales.shape)}; both are bytes, with a scale "
                    "for each block",
                    where=str(place.file),
                )
            found[whole] = _Microscaled(place, scales)
        elif part != "scales" or f"{whole}_blocks" not in tensors:
            found[name] = place
    return found


_BYTE = np.dtype(np.uint8)
_FORMATS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "fp8": _in_blocks,
    "mxfp4": _microscaled,
}
"""By the name of `quant_method`."""
