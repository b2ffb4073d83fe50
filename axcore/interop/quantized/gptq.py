"""Weights that are integers in words of 32 bits, inputs by outputs: `gptq` and `awq`.

`weight = scale * (number - zero)`, where `inputs` of a group share scales and zeros of outputs.

Source: Frantar et al. 2023, arXiv:2210.17323, and the layout of AutoGPTQ's `QuantLinear`; Lin et
al. 2023, arXiv:2306.00978, and the layout of AutoAWQ's `WQLinear_GEMM`.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.quantized.tensors import (
    Dequantized,
    Parts,
    Settings,
    Tensor,
    check_tensor,
    filled,
    floats,
    ints_of_words,
)
from axcore.interop.tensor_place import TensorPlace

_SCALES = (np.float16, np.float32, "bfloat16")
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of eight outputs is: kernels unpack even and odd ones at once."""


@attrs.frozen
class _Packed(Dequantized):
    """A matrix of integers with scales and zeros of groups of inputs; read transposed.

    Args:
        zeros: `[groups, outputs / (32 / bits)]`, in words.
        scales: `[groups, outputs]`.
        groups: The group of each input; those of a size, in order, where None.
        group_size: That size.
        bits: Of a number.
    """

    zeros: TensorPlace
    scales: TensorPlace
    groups: TensorPlace | None
    group_size: int
    bits: int

    @property
    def per_word(self) -> int:
        """Numbers of a word."""
        return 32 // self.bits

    def group_of(self) -> np.ndarray:
        """Return the group of each input."""
        if self.groups is None:
            return np.arange(self.shape[1]) // self.group_size
        return self.groups.read()


@attrs.frozen
class _GPTQ(_Packed):
    """`numbers` are `[inputs / (32 / bits), outputs]`.

    Args:
        added: What zeros are stored less than they are.
    """

    added: int

    def read(self) -> np.ndarray:
        """Return the weight."""
        words, mask, scales = self.numbers.read(), (1 << self.bits) - 1, floats(self.scales)
        # Wrapped as AutoGPTQ does: a zero of 0 is stored as the largest number.
        stored = ints_of_words(self.zeros.read(), self.bits)
        zeros = ((stored.astype(np.int32) + self.added) & mask).astype(np.float32)
        group_of, count = self.group_of(), self.per_word

        def fill(rows: slice, out: np.ndarray) -> None:
            own = words[rows.start // count : rows.stop // count]
            for i in range(count):
                groups = group_of[rows][i::count]
                part = ((own >> (self.bits * i)) & mask).astype(np.float32)
                part -= zeros[groups]
                np.multiply(part, scales[groups], out=out[i::count])

        return filled(self.shape[::-1], fill, step=count).T


@attrs.frozen
class _AWQ(_Packed):
    """`numbers` are `[inputs, outputs / 8]`, four bits each."""

    def read(self) -> np.ndarray:
        """Return the weight."""
        words, scales, group_of = self.numbers.read(), floats(self.scales), self.group_of()
        zeros = np.empty(scales.shape, np.float32)
        _unpack_awq(self.zeros.read(), zeros)

        def fill(rows: slice, out: np.ndarray) -> None:
            _unpack_awq(words[rows], out)
            out -= zeros[group_of[rows]]
            out *= scales[group_of[rows]]

        return filled(self.shape[::-1], fill).T


def _unpack_awq(words: np.ndarray, out: np.ndarray) -> None:
    for i, place in enumerate(_AWQ_ORDER):
        out[:, i::8] = (words >> (4 * place)) & 15


def read_gptq(parts: Parts, settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of modules with `qweight`, `qzeros`, `scales` and perhaps `g_idx`.

    Raises:
        CheckpointError: Numbers have 3 bits, for one, or are laid out for a kernel.
    """
    bits, form = settings.get("bits"), settings.get("checkpoint_format", "gptq")
    if bits not in (2, 4, 8) or form not in ("gptq", "gptq_v2"):
        raise CheckpointError(
            f"the weights are quantized by GPTQ in {bits} bits, in the form {form!r}; axcore reads "
            "2, 4 and 8 bits in the forms 'gptq' and 'gptq_v2'",
            where="quantization_config.bits" if form.startswith("gptq") else "checkpoint_format",
            hint="fetch the model in 4 bits, or in bfloat16",
        )
    # Version 1 stores zeros less one, so that a kernel adds it for free.
    added, count = int(form == "gptq"), 32 // bits
    for name, numbers in parts.ending(".qweight"):
        inputs, outputs = _matrix(f"{name}.qweight", numbers)
        yield (
            f"{name}.weight",
            _GPTQ(
                numbers,
                (outputs, inputs * count),
                *_scales(parts, name, settings, inputs * count, outputs, count),
                bits,
                added,
            ),
        )


def read_awq(parts: Parts, settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of modules with `qweight`, `qzeros` and `scales`.

    Raises:
        CheckpointError: They are laid out for another kernel than `gemm`.
    """
    bits = settings.get("bits", settings.get("w_bit"))
    version = str(settings.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise CheckpointError(
            f"the weights are quantized by AWQ in {bits} bits, in the version {version!r}; axcore "
            "reads 4 bits in the version 'gemm'",
            where="quantization_config.version",
            hint="fetch the model as AWQ of the version gemm, or in bfloat16",
        )
    for name, numbers in parts.ending(".qweight"):
        inputs, words = _matrix(f"{name}.qweight", numbers)
        shape = (8 * words, inputs)
        yield (
            f"{name}.weight",
            _AWQ(numbers, shape, *_scales(parts, name, settings, inputs, 8 * words, 8), bits),
        )


def _matrix(name: str, numbers: TensorPlace) -> tuple[int, int]:
    shape = numbers.shape if len(numbers.shape) == 2 else (-1, -1)
    check_tensor(name, numbers, shape, dtypes=[np.int32])
    return shape[0], shape[1]


def _scales(
    parts: Parts, name: str, settings: Settings, inputs: int, outputs: int, count: int
) -> tuple[TensorPlace, TensorPlace, TensorPlace | None, int]:
    """Return the zeros, the scales, the group of each input and the size of a group."""
    size = settings.get("group_size", settings.get("q_group_size", -1))
    size = inputs if size in (-1, None) else int(size)
    groups, of = -(-inputs // size), f"{name}.qweight"
    zeros = parts.take(f"{name}.qzeros", (groups, outputs // count), of=of, dtypes=[np.int32])
    scales = parts.take(f"{name}.scales", (groups, outputs), of=of, dtypes=_SCALES)
    if not parts.has(f"{name}.g_idx"):
        return zeros, scales, None, size
    found = parts.take(f"{name}.g_idx", (inputs,), of=of, dtypes=[np.int32])
    check_groups(f"{name}.g_idx", found, groups)
    return zeros, scales, found, size


def check_groups(name: str, place: TensorPlace, groups: int) -> None:
    """Check that the group of each input is one of the groups.

    Raises:
        CheckpointError: One is not.
    """
    found = place.read()
    # numpy would take a negative group for one of the last.
    if found.size and not (found.min() >= 0 and found.max() < groups):
        raise CheckpointError(
            f"{name} has groups from {found.min()} to {found.max()}, and there are {groups}",
            where=str(place.file),
            hint="fetch the files again",
        )
