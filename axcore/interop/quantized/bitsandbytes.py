"""Weights that bitsandbytes quantized: NF4 and FP4 in blocks, and integers of eight bits.

Source: Dettmers et al. 2023, arXiv:2305.14314, section 3 (NF4, double quantization); Dettmers et
al. 2022, arXiv:2208.07339, section 3 (eight bits by row); the library's `QuantState`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError
from axcore.interop.quantized.tensors import (
    Dequantized,
    Parts,
    Settings,
    Tensor,
    as_float32,
    check_tensor,
    filled,
    floats,
    from_pairs,
    pair_table,
)
from axcore.interop.tensor_place import TensorPlace

_STATE = ".quant_state.bitsandbytes__"
_PER_LEVEL = np.float32(7.874015718698502e-3)
"""One of 127, as the library has it."""


@attrs.frozen
class _Blocks(Dequantized):
    """An array of four-bit codes of a table, each block of numbers with its largest magnitude.

    Args:
        numbers: Two codes a byte, the first one in its high half.
        table: The number of each code.
        largest: What numbers of a block are multiplied by, or a code of it.
        block: Numbers of a block.
        nested: How these codes are read.
    """

    table: TensorPlace
    largest: TensorPlace
    block: int
    nested: "_Nested | None"

    def read(self) -> np.ndarray:
        """Return the products of numbers and their block's largest magnitude."""
        # The halves swapped: a table of pairs begins with the low one.
        pairs = np.ascontiguousarray(pair_table(floats(self.table))[:, ::-1])
        largest = floats(self.largest) if self.nested is None else self.nested.read(self.largest)
        codes, half = self.numbers.read().reshape(-1).view(np.uint8), self.block // 2

        def fill(rows: slice, out: np.ndarray) -> None:
            found = from_pairs(codes[rows.start * half : rows.stop * half], pairs)
            flat = out.reshape(-1)
            flat[: found.size] = found
            out *= largest[rows, None]

        count = math.prod(self.shape)
        whole = filled((len(largest), self.block), fill)
        return whole.reshape(-1)[:count].reshape(self.shape)


@attrs.frozen
class _Nested:
    """The largest magnitudes of blocks, themselves quantized in blocks of eight bits.

    Args:
        table: The number of each code.
        largest: What they are multiplied by, a block.
        block: How many are in one.
        offset: What is added then.
    """

    table: TensorPlace
    largest: TensorPlace
    block: int
    offset: float

    def read(self, codes: TensorPlace) -> np.ndarray:
        """Return the numbers of codes."""
        found: np.ndarray = floats(self.table)[codes.read()]
        found *= np.repeat(floats(self.largest), self.block)[: len(found)]
        return found + np.float32(self.offset)


@attrs.frozen
class _Rows(Dequantized):
    """A matrix of integers of eight bits, each row with its largest magnitude."""

    largest: TensorPlace

    def read(self) -> np.ndarray:
        """Return the products of numbers and magnitudes, over 127."""
        stored, largest = self.numbers.read(), floats(self.largest)[:, None]

        def fill(rows: slice, out: np.ndarray) -> None:
            # In this order, in which the library rounds.
            np.multiply(as_float32(stored[rows]), largest[rows], out=out)
            out *= _PER_LEVEL

        return filled(self.shape, fill)


def read_bitsandbytes(parts: Parts, settings: Settings) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with a `quant_state` or with `SCB`."""
    for kind in ("nf4", "fp4"):
        for name, place in parts.ending(f".weight{_STATE}{kind}"):
            yield f"{name}.weight", _blocks(parts, f"{name}.weight", place)
    for name, largest in parts.ending(".SCB"):
        weight = f"{name}.weight"
        numbers = parts.take(weight, of=f"{name}.SCB")
        shape = numbers.shape if len(numbers.shape) == 2 else (-1, -1)
        check_tensor(weight, numbers, shape, dtypes=[np.int8])
        check_tensor(f"{name}.SCB", largest, shape[:1])
        if parts.has(form := f"{name}.weight_format"):
            _check_rows(form, parts.take(form, (), (1,), of=weight))
        yield weight, _Rows(numbers, shape, largest)


def _check_rows(name: str, place: TensorPlace) -> None:
    """Check that numbers are stored by rows.

    Raises:
        CheckpointError: They are in the order of a kernel.
    """
    if place.read().any():
        raise CheckpointError(
            f"{name} says that numbers are in the order of a kernel, and not by rows",
            where=str(place.file),
            hint="save the model again with a newer bitsandbytes",
        )


def _blocks(parts: Parts, name: str, place: TensorPlace) -> _Blocks:
    state = _state(name, place)
    shape, block = tuple(state["shape"]), int(state["blocksize"])
    count = math.prod(shape)
    num_blocks, num_bytes = -(-count // block), -(-count // 2)
    numbers = parts.take(name, of=f"{name}.absmax")
    # The storage of the bytes may have another dtype; these are the bytes.
    if numbers.nbytes != num_bytes:
        raise CheckpointError(
            f"{name} has {numbers.nbytes} bytes, and four bits for each number of shape "
            f"{list(shape)} are {num_bytes}",
            where=str(numbers.file),
            hint="fetch the files again",
        )
    table = parts.take(f"{name}.quant_map", (16,), of=name)
    largest = parts.take(f"{name}.absmax", (num_blocks,), of=name)
    nested = None
    if largest.dtype == np.uint8:
        size = int(state["nested_blocksize"])
        again = parts.take(f"{name}.nested_absmax", (-(-num_blocks // size),), of=name)
        codes = parts.take(f"{name}.nested_quant_map", (256,), of=name)
        nested = _Nested(codes, again, size, float(state["nested_offset"]))
    return _Blocks(numbers, shape, table, largest, block, nested)


def _state(name: str, place: TensorPlace) -> Mapping[str, Any]:
    """Return what a blob of JSON says about a weight.

    Raises:
        CheckpointError: It is damaged.
    """
    try:
        state: dict[str, Any] = parse_json(place.read().tobytes())
        numbers = [state["blocksize"], *state["shape"]]
        if not all(type(one) is int and one > 0 for one in numbers) or state["blocksize"] % 2:
            raise ValueError(f"it has the sizes {numbers}")
        return state
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the quant_state of {name} is damaged: {error}",
            where=str(place.file),
            hint="fetch the files again",
        ) from error
