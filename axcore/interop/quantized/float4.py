"""Weights in floats of four bits: `mxfp4`, and NVFP4 as ModelOpt writes it (`modelopt`).

Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification" 1.0, section 5;
the `NVFP4QTensor.dequantize` of Model Optimizer.
"""

from collections.abc import Callable, Iterator
from functools import partial

import attrs
import jax.numpy as jnp
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.quantized.float8 import FLOAT8, in_rows
from axcore.interop.quantized.tensors import (
    Dequantized,
    Parts,
    ScaledRows,
    Settings,
    Tensor,
    check_tensor,
    floats,
    from_pairs,
    pair_table,
)
from axcore.interop.tensor_place import TensorPlace

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
PAIRS = pair_table(np.array([*_POSITIVE, *(-one for one in _POSITIVE)], np.float32))
"""The two numbers of each byte."""
_BYTE = np.dtype(np.uint8)
NVFP4_GROUP = 16
"""Numbers of a row that have one scale in NVFP4."""


@attrs.frozen
class _Microscaled(Dequantized):
    """Matrices of four-bit floats, each 32 of a row with a power of two for their scale.

    What is read has rows and columns swapped: inputs before outputs, as the models that are
    published so have them elsewhere.

    Args:
        numbers: `[..., rows, blocks, 16]`: two numbers a byte, the first one in its low half.
        shape: Of what is read.
        exponents: `[..., rows, blocks]`: 127 for a scale of one.
    """

    exponents: TensorPlace

    def read(self) -> np.ndarray:
        """Return the products of numbers and scales."""
        whole = from_pairs(self.numbers.read(), PAIRS)
        # ldexp, since a power of two is exact in it; exponents are biased as float32's are.
        scales = np.ldexp(np.float32(1.0), self.exponents.read().astype(np.int32) - 127)
        whole *= scales[..., None]
        return whole.reshape(*self.exponents.shape[:-1], -1).swapaxes(-1, -2)


def read_mxfp4(parts: Parts, settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model with `NAME_blocks` and `NAME_scales`."""
    for name, place in parts.ending("_blocks"):
        scales = parts.take(f"{name}_scales", of=f"{name}_blocks")
        if scales.shape != place.shape[:-1] or {place.dtype, scales.dtype} != {_BYTE}:
            raise CheckpointError(
                f"{name}_blocks has {place.dtype} of shape {list(place.shape)} and scales "
                f"{scales.dtype} of shape {list(scales.shape)}; both are bytes, with a scale "
                "for each block",
                where=str(place.file),
                hint="fetch the files again",
            )
        *rest, rows, blocks, num_bytes = place.shape
        yield name, _Microscaled(place, (*rest, 2 * blocks * num_bytes, rows), scales)


_ALGORITHMS = ("FP8", "NVFP4", "MIXED_PRECISION")


def read_modelopt(parts: Parts, settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Yield weights of ModelOpt: NVFP4, or eight-bit floats with one scale.

    Raises:
        CheckpointError: They are of another of its algorithms.
    """
    algorithm = settings.get("quant_algo")
    if algorithm not in _ALGORITHMS:
        raise CheckpointError(
            f"ModelOpt quantized the weights by {algorithm}; of its algorithms axcore reads "
            f"{', '.join(_ALGORITHMS)}",
            where="quantization_config.quant_algo",
            hint="fetch the model in bfloat16, or in one of these",
        )
    for name, scales in parts.ending(".weight_scale"):
        weight = f"{name}.weight"
        numbers = parts.take(weight, of=f"{weight}_scale")
        if numbers.dtype in FLOAT8:
            yield weight, in_rows(weight, numbers, scales)
        else:
            whole = parts.take(f"{weight}_scale_2", (), (1,), of=weight, dtypes=[np.float32])
            yield weight, nvfp4(weight, numbers, scales, partial(_product, scales, whole))


def _product(scales: TensorPlace, whole: TensorPlace) -> np.ndarray:
    product: np.ndarray = floats(scales) * floats(whole).reshape(())
    return product


def nvfp4(
    name: str, numbers: TensorPlace, scales: TensorPlace, made: Callable[[], np.ndarray]
) -> ScaledRows:
    """Return a matrix of four-bit floats, two a byte, each 16 of a row with a scale.

    Args:
        name: Of the weight.
        numbers: `[N, K / 2]`.
        scales: `[N, K / 16]`, eight-bit floats.
        made: Returns what numbers are multiplied by, made of these and of the tensor's own.

    Raises:
        CheckpointError: A shape or a dtype is another one.
    """
    rows, width = numbers.shape if len(numbers.shape) == 2 else (-1, -1)
    check_tensor(name, numbers, (rows, width), dtypes=[np.uint8])
    shape = (rows, -(-2 * width // NVFP4_GROUP))
    check_tensor(f"{name}_scale", scales, shape, dtypes=[jnp.float8_e4m3fn])
    return ScaledRows(
        numbers, (rows, 2 * width), made, NVFP4_GROUP, decode=partial(from_pairs, pairs=PAIRS)
    )
