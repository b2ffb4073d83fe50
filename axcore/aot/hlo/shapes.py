"""Shapes as XLA prints them: `bf16[4,128]{1,0:T(8,128)(2,1)S(1)}`, and tuples of them."""

import math
import re
from typing import Any

import attrs

_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_ORDER = re.compile(r"\{([\d,]+)")
_TILE = re.compile(r"T\(([\d,]+)\)")

DEVICE_MEMORY = 0

_BITS = {"pred": 8, "token": 0, "opaque": 0}


@attrs.frozen
class Shape:
    """One array, or a tuple of shapes.

    Args:
        dtype: As XLA names it; empty for a tuple.
        dims: Sizes; empty for a scalar or a tuple.
        stored_dims: Sizes as they are stored, rounded up to whole tiles; in another order.
        space: Memory space: 0 the device's own, others smaller ones on the chip, or the host's.
        parts: Of a tuple.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    stored_dims: tuple[int, ...] = ()
    space: int = 0
    parts: tuple[Any, ...] = ()

    @property
    def arrays(self) -> tuple["Shape", ...]:
        """The arrays that it is made of, itself if it is one."""
        if not self.parts and self.dtype:
            return (self,)
        return tuple(array for part in self.parts for array in part.arrays)

    @property
    def size(self) -> int:
        """Number of elements of an array."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, without padding of layouts."""
        return sum(array.size * bits(array.dtype) // 8 for array in self.arrays)

    @property
    def device_bytes(self) -> int:
        """Bytes of the arrays that are in the device's own memory, without padding."""
        return sum(array.nbytes for array in self.arrays if array.space == DEVICE_MEMORY)

    @property
    def stored_bytes(self) -> int:
        """Bytes that an array takes in memory."""
        return math.prod(self.stored_dims) * bits(self.dtype) // 8

    def __str__(self) -> str:
        if self.dtype:
            return f"{self.dtype}[{','.join(map(str, self.dims))}]"
        return f"({', '.join(map(str, self.parts))})"


def bits(dtype: str) -> int:
    """Returns the bits of an element: those that its name ends in, or starts with for `f8e4m3`."""
    if dtype in _BITS:
        return _BITS[dtype]
    number = re.match(r"[a-z]+(\d+)", dtype)
    return int(number[1]) if number else 8


def parse_shape(text: str) -> tuple[Shape, str]:
    """Returns the shape that `text` begins with, and the rest of the text."""
    if not text.startswith("("):
        found = _ARRAY.match(text)
        assert found is not None, text
        dims = tuple(int(size) for size in re.findall(r"\d+", found[2]))
        layout = found[3] or ""
        space = _SPACE.search(layout)
        shape = Shape(found[1], dims, _stored(dims, layout), int(space[1]) if space else 0)
        return shape, text[found.end() :]
    parts = []
    rest = text[1:]
    while not rest.startswith(")"):
        part, rest = parse_shape(rest.lstrip(", "))
        parts.append(part)
    return Shape("", parts=tuple(parts)), rest[1:]


def _stored(dims: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Returns sizes from the outermost to the innermost in memory, rounded up to whole tiles."""
    order, tile = _ORDER.search(layout), _TILE.search(layout)
    if order is None:
        return dims
    stored = [dims[int(dim)] for dim in reversed(order[1].split(","))]
    sizes = [int(size) for size in tile[1].split(",")] if tile else []
    for place, size in enumerate(reversed(sizes), start=1):
        if place <= len(stored):
            stored[-place] = -(-stored[-place] // size) * size
    return tuple(stored)
