"""The tensors of a GGUF file: which of Hugging Face's each is made of, and in which numbers."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import attrs
import jax
import numpy as np

from axcore.errors import ConfigError
from axcore.interop.config_map import Json
from axcore.interop.copying import pieces
from axcore.interop.gguf_map import Change, GGUFMap
from axcore.interop.weight_map import BoundMap, Piece, Shape, listed
from axcore.interop.writing import published_arrays, stored

GGUFType = Literal["float32", "bfloat16", "float16", "q8_0"]
Leaves = Mapping[str, jax.Array]
_EXPERT = re.compile(r"(\.experts)\.\d+(?=\.)")
_ROUTER = re.compile(r"\.ffn_gate_inp\.weight$")
_BLOCK = 32
"""Numbers of a row that have one scale in Q8_0."""


@attrs.frozen
class GGUFTensor:
    """A tensor that is to be written.

    Args:
        name: In the file.
        shape: Its shape, the slowest dimension first.
        type: Of its numbers.
        parts: What returns its array, or those of its experts, given the arrays of a state.
    """

    name: str
    shape: Shape
    type: GGUFType
    parts: tuple[Callable[[Leaves], np.ndarray], ...]


def gguf_tensors(
    bound: BoundMap, layout: GGUFMap, values: Json, dtype: GGUFType | None
) -> list[GGUFTensor]:
    """Returns the tensors of a file, experts of a layer together.

    Args:
        bound: The weight map of the model.
        layout: How its family is in such files.
        values: The fields of its `config.json`.
        dtype: Of matrices; each array's own where None. Vectors and routers are float32, in which
            alone llama.cpp computes with them.

    Raises:
        ConfigError: llama.cpp has no place for a tensor, or a row cannot be quantized.
    """
    name_of = _names(layout.architecture, values["num_hidden_layers"])
    found: dict[str, list[_Part]] = {}
    unknown = []
    for piece in bound.pieces:
        for number, theirs in enumerate(piece.theirs):
            name = name_of(theirs)
            if name is None:
                unknown.append(theirs)
            else:
                part = _Part(piece, number, _change(layout, theirs, values))
                found.setdefault(name, []).append(part)
    if unknown:
        raise ConfigError(
            f"llama.cpp's models of type {layout.architecture} have no place for {len(unknown)} "
            f"tensors:\n{listed(unknown)}",
            where="model",
            hint="write the model for Hugging Face: hf:FOLDER",
        )
    made = (
        GGUFTensor(name, array.shape, "float32", (partial(_given, array),))
        for name, array in layout.tensors(values).items()
    )
    return [*made, *(_tensor(name, parts, bound, dtype) for name, parts in found.items())]


def gguf_pieces(
    tensors: list[GGUFTensor], leaves: Leaves
) -> Iterator[tuple[GGUFTensor, np.ndarray]]:
    """Yields what is in tensors, in their order, some rows at a time."""
    for tensor in tensors:
        for read in tensor.parts:
            array = np.atleast_1d(read(leaves))
            yield from ((tensor, array[at]) for at in pieces(array))


def encoded(tensor: GGUFTensor, rows: np.ndarray) -> np.ndarray:
    """Returns rows of a tensor as a file holds them.

    Raises:
        CheckpointError: A number is not finite in the type.
    """
    if tensor.type != "q8_0":
        return stored(tensor.name, rows, np.dtype(tensor.type))
    from gguf import GGMLQuantizationType, quants

    exact = stored(tensor.name, rows, np.dtype(np.float32))
    return np.asarray(quants.quantize(exact, GGMLQuantizationType.Q8_0))


@attrs.frozen
class _Part:
    """One of Hugging Face's tensors: what makes it, and what becomes of it."""

    piece: Piece
    number: int
    change: Change | None

    @property
    def shape(self) -> Shape:
        return self.piece.shapes[self.number]

    def __call__(self, leaves: Leaves) -> np.ndarray:
        array = published_arrays(self.piece, leaves)[self.number]
        return array if self.change is None else self.change(array)


def _names(architecture: str, num_layers: int) -> Callable[[str], str | None]:
    import gguf

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(numbers[architecture], num_layers)
    suffixes = (".weight", ".bias")
    return lambda theirs: known.get_name(_EXPERT.sub(r"\1", theirs), try_suffixes=suffixes)


def _change(layout: GGUFMap, name: str, values: Json) -> Change | None:
    changes = (change for pattern, change in layout.changes if re.search(pattern, name))
    return next((change(values) for change in changes), None)


def _given(array: np.ndarray, leaves: Leaves) -> np.ndarray:
    return array


def _tensor(name: str, parts: list[_Part], bound: BoundMap, dtype: GGUFType | None) -> GGUFTensor:
    shape = parts[0].shape if len(parts) == 1 else (len(parts), *parts[0].shape)
    kind: Any = "float32"
    if len(parts[0].shape) > 1 and not _ROUTER.search(name):
        kind = dtype or str(bound.specs[parts[0].piece.ours[0].leaf].abstract.dtype)
    if kind == "q8_0" and shape[-1] % _BLOCK:
        raise ConfigError(
            f"{name} has rows of {shape[-1]} numbers, and q8_0 a scale for each {_BLOCK}",
            where="--dtype",
            hint="--dtype float16",
        )
    return GGUFTensor(name, shape, kind, tuple(parts))
