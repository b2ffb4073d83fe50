"""What formats of quantized weights have in common: `Tensor`, `Parts` and tensors with scales.

Shape letters: N rows (outputs), K columns (inputs), G groups of a row.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np

from axcore.errors import CheckpointError
from axcore.interop.host_arrays import map_ahead
from axcore.interop.tensor_place import TensorPlace

Settings = Mapping[str, Any]
"""`quantization_config` of a `config.json`."""
Shape = tuple[int, ...]
FETCH_AGAIN = "fetch the files again"


class Tensor(Protocol):
    """A tensor of a pretrained checkpoint, as it is stored or dequantized."""

    @property
    def file(self) -> Path:
        """The file that contains it."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its numbers."""

    @property
    def shape(self) -> Shape:
        """Its shape."""

    def read(self) -> np.ndarray:
        """Return it."""


_ACTIVATIONS = (
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".input_scale_ub",
    ".activation_scale",
    ".output_scale",
    ".output_zero_point",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".k_zero_point",
    ".v_zero_point",
)
"""Names of tensors that say how activations or a cache are quantized, which here they are not."""


class Parts:
    """The tensors of a checkpoint; a format takes those that it makes weights of."""

    def __init__(self, tensors: Mapping[str, TensorPlace]) -> None:
        self._tensors = {n: one for n, one in tensors.items() if not n.endswith(_ACTIVATIONS)}
        self._taken: set[str] = set()

    def ending(self, suffix: str) -> Iterator[tuple[str, TensorPlace]]:
        """Yield the tensors whose names have an ending, with their names without it; take them."""
        for name, place in self._tensors.items():
            if name.endswith(suffix) and name not in self._taken:
                self._taken.add(name)
                yield name.removesuffix(suffix), place

    def has(self, name: str) -> bool:
        """Whether there is a tensor."""
        return name in self._tensors

    def take(
        self, name: str, *shapes: Shape, of: str, dtypes: Collection[Any] | None = None
    ) -> TensorPlace:
        """Return a tensor that belongs to another one.

        Args:
            name: Its name.
            *shapes: Those that it may have; any where none are given.
            of: The tensor that it belongs to, for errors.
            dtypes: Those that it may have; any where None.

        Raises:
            CheckpointError: It is missing, or has another shape or dtype.
        """
        if name not in self._tensors:
            owner = self._tensors.get(of)
            raise CheckpointError(
                f"{of} has {owner.dtype if owner else 'numbers'} and no {name}, so that its "
                "numbers mean nothing",
                where=str(owner.file) if owner else of,
                hint=FETCH_AGAIN,
            )
        self._taken.add(name)
        place = self._tensors[name]
        check_tensor(name, place, *shapes, dtypes=dtypes)
        return place

    def rest(self) -> dict[str, TensorPlace]:
        """Return the tensors that no format took, which are stored as they are.

        Raises:
            CheckpointError: One has floats of eight bits, which mean nothing without a scale.
        """
        rest = {name: one for name, one in self._tensors.items() if name not in self._taken}
        for name, place in rest.items():
            # Taken as it is, the model would answer nonsense.
            if place.dtype.itemsize == 1 and place.dtype.kind not in "biu":
                raise CheckpointError(
                    f"{name} has {place.dtype} and no {name}_scale or {name}_scale_inv, so that "
                    "its numbers mean nothing",
                    where=str(place.file),
                    hint=FETCH_AGAIN,
                )
        return rest


def check_tensor(
    name: str, place: TensorPlace, *shapes: Shape, dtypes: Collection[Any] | None = None
) -> None:
    """Check that a tensor has one of some shapes, and one of some dtypes.

    Raises:
        CheckpointError: It has another.
    """
    allowed = None if dtypes is None else [np.dtype(one) for one in dtypes]
    if (shapes and place.shape not in shapes) or (allowed and place.dtype not in allowed):
        wanted = " or ".join(str(list(shape)) for shape in shapes) or "any shape"
        kinds = " or ".join(map(str, allowed or ())) or "any dtype"
        raise CheckpointError(
            f"{name} has {place.dtype} of shape {list(place.shape)}; the format has {kinds} of "
            f"{wanted} here",
            where=str(place.file),
            hint="compare quantization_config with the one that was published, and " + FETCH_AGAIN,
        )


def floats(place: TensorPlace) -> np.ndarray:
    """Return a tensor's numbers in float32."""
    return as_float32(place.read())


def as_float32(array: np.ndarray) -> np.ndarray:
    """Return numbers in float32, those of eight bits by a table.

    numpy has no arithmetic for floats of eight bits, and looking up is faster than casting.
    """
    if array.dtype.itemsize > 1:
        return array.astype(np.float32)
    values = np.arange(256, dtype=np.uint8).view(array.dtype).astype(np.float32)
    return values[array.view(np.uint8)]


def pair_table(values: np.ndarray) -> np.ndarray:
    """Return the two numbers of each byte, given those of four bits; the low half is the first."""
    pairs = np.stack([np.tile(values, 16), np.repeat(values, 16)], axis=-1)
    return np.ascontiguousarray(pairs, np.float32)


def from_pairs(packed: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the numbers of bytes that have two each, [..., B] to [..., 2 B]."""
    # One look-up of eight bytes instead of two of four.
    found: np.ndarray = pairs.view(np.complex64)[:, 0][packed.view(np.uint8)]
    return found.view(np.float32)


def ints_of_words(words: np.ndarray, bits: int) -> np.ndarray:
    """Return the unsigned numbers of words of 32 bits, lowest bits first, [.., W] to [.., n W]."""
    if bits == 8:
        return words.view(np.uint8)
    count = 32 // bits
    found = np.empty((*words.shape, count), np.uint8)
    # A loop: broadcasting would have an inner loop over a few shifts only.
    for i in range(count):
        found[..., i] = (words >> (bits * i)) & ((1 << bits) - 1)
    return found.reshape(*words.shape[:-1], -1)


# Small enough that all steps of a piece find it in a cache.
_PIECE_NUMBERS = 1 << 17


def filled(shape: Shape, fill: Callable[[slice, np.ndarray], None], *, step: int = 1) -> np.ndarray:
    """Return an array of float32 whose rows several threads make, some rows at a time.

    Args:
        shape: Of the array.
        fill: Given rows, writes their numbers.
        step: Rows that are made together.
    """
    out = np.empty(shape, np.float32)
    width = math.prod(shape[1:])
    size = step * max(1, _PIECE_NUMBERS // max(1, width * step))
    ranges = (slice(i, min(i + size, shape[0])) for i in range(0, shape[0], size))
    deque(map_ahead(lambda rows: fill(rows, out[rows]), ranges), maxlen=0)
    return out


@attrs.frozen
class Dequantized(ABC):
    """A tensor that is computed from stored ones; its numbers are float32, and not rounded.

    Args:
        numbers: What the largest part of it is stored as.
        shape: Its shape.
    """

    numbers: TensorPlace
    shape: Shape

    dtype = np.dtype(np.float32)

    @property
    def file(self) -> Path:
        """The file that contains the numbers."""
        return self.numbers.file

    @abstractmethod
    def read(self) -> np.ndarray:
        """Return what the numbers mean."""


@attrs.frozen
class ScaledRows(Dequantized):
    """A matrix whose rows have a scale for each group of numbers, and a zero point where given.

    Args:
        scales: Returns the scales, [N, G] in float32; of one row where all rows have the same.
        group: Numbers of a group; the last group of a row may have less.
        zeros: Returns what is subtracted before, [N, G].
        group_of: The group of each column, where they are in no order.
        decode: From stored rows to float32, [N, K].
    """

    scales: Callable[[], np.ndarray]
    group: int
    zeros: Callable[[], np.ndarray] | None = None
    group_of: TensorPlace | None = None
    decode: Callable[[np.ndarray], np.ndarray] = as_float32

    def read(self) -> np.ndarray:
        """Return `(numbers - zeros) * scales`."""
        stored, scales_NG = self.numbers.read(), self.scales()
        zeros_NG = None if self.zeros is None else self.zeros()
        order = None if self.group_of is None else self.group_of.read()

        def fill(rows: slice, out: np.ndarray) -> None:
            out[:] = self.decode(stored[rows])[:, : self.shape[1]]
            if zeros_NG is not None:
                out -= self._each(_own(zeros_NG, rows), order)
            out *= self._each(_own(scales_NG, rows), order)

        return filled(self.shape, fill)

    def _each(self, groups: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        """Return what each column has of its group."""
        if groups.shape[1] == 1:
            return groups
        if order is not None:
            return groups[:, order]
        return np.repeat(groups, self.group, axis=1)[:, : self.shape[1]]


def _own(groups: np.ndarray, rows: slice) -> np.ndarray:
    return groups if len(groups) == 1 else groups[rows]
