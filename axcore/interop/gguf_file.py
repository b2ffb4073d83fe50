"""`to_gguf`: a model as one file for llama.cpp, written tensor by tensor."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import attrs
import jax
import numpy as np

from axcore.errors import ConfigError
from axcore.extras import import_extra
from axcore.interop.checkpoint_arrays import hf_arrays, named_leaves, stored
from axcore.interop.config_map import Json
from axcore.interop.family import family_named, family_of
from axcore.interop.gguf_k_quants import BLOCK, quantize_q4_k, quantize_q6_k
from axcore.interop.gguf_map import LENGTH, Change, GGUFMap, Metadata
from axcore.interop.host_arrays import map_ahead, pieces
from axcore.interop.tensor_files import new_file
from axcore.interop.weight_map import BoundMap, Piece, Shape, listed
from axcore.plugins import HuggingFaceFamily, plugin_host
from axcore.progress import Work, working

_TYPES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "q8_0": "Q8_0",
    "q6_k": "Q6_K",
    "q4_k": "Q4_K",
}
"""Names of types in the library `gguf`."""
_FILE_TYPES = {"float32": 0, "float16": 1, "q8_0": 7, "q4_k": 14, "q6_k": 18, "bfloat16": 32}
"""llama.cpp's number of a file most of which has a type."""


GGUFType = Literal["float32", "bfloat16", "float16", "q8_0", "q6_k", "q4_k"]
BLOCK_TYPES = ("q8_0", "q6_k", "q4_k")
"""Types of which several numbers of a row have a scale in common."""


Leaves = Mapping[str, jax.Array]


@attrs.frozen
class _GGUFTensor:
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


def to_gguf(
    path: Path | str,
    cfg: Any,
    state: Any,
    *,
    vocabulary: Mapping[str, Any],
    max_length: int,
    dtype: GGUFType | None = None,
) -> str:
    """Write a model into a new file, atomically, and return llama.cpp's name of it.

    Args:
        path: Where to write; it may not exist.
        cfg: The model's config.
        state: Its state.
        vocabulary: Metadata of the tokenizer, as `axcore.data.gguf_vocabulary` returns it.
        max_length: Tokens of a row at most.
        dtype: Of matrices; each array's own by default. `q8_0` are integers of eight bits, with a
            scale for each 32; `q6_k` and `q4_k` of six and four, in blocks of 256 with scales of
            groups. Of `q4_k` the head has six bits, as llama.cpp writes it.

    Raises:
        ConfigError: llama.cpp has no such model, or `gguf` is not installed.
        CheckpointError: The file exists, a number is not finite, or arrays are on other machines.
    """
    import_extra(
        "gguf", used_by="a file for llama.cpp", error=ConfigError
    )  # before anything is written
    layout, family, values = _layout(cfg)
    # What was trained here may have other lengths than the checkpoint that it began as.
    values = {**values, LENGTH: max_length}
    metadata, leaves = layout.metadata(values), named_leaves(state)
    tensors = _gguf_tensors(family.bind(cfg), layout, values, dtype)
    with new_file(path) as draft:
        general = _general(tensors)
        _write_header(draft, layout.architecture, {**general, **metadata, **vocabulary}, tensors)
        pieces = _gguf_pieces(tensors, leaves)
        size = sum(map(_num_bytes, tensors))
        with working(f"writing {Path(path).name}", size) as work:
            _append(draft, map_ahead(lambda one: (one[0].name, encoded(*one)), pieces), work)
    return layout.architecture


def _layout(cfg: Any) -> tuple[GGUFMap, Any, dict[str, Any]]:
    name, family, values = family_of(cfg)
    if family.gguf is None:
        names = sorted(record.name for record in plugin_host().records(HuggingFaceFamily))
        written = ", ".join(one for one in names if family_named(one).gguf)
        raise ConfigError(
            f"models of type {name} are not written for llama.cpp",
            where="model",
            hint=f"these are: {written}",
        )
    return family.gguf, family, values


def _general(tensors: Iterable[_GGUFTensor]) -> Metadata:
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.type] += math.prod(tensor.shape)
    return {
        "general.type": "model",
        "general.file_type": _FILE_TYPES[counts.most_common(1)[0][0]],
        "general.quantization_version": 2,
    }


def _write_header(
    path: Path, architecture: str, metadata: Metadata, tensors: Iterable[_GGUFTensor]
) -> None:
    """Write all of a file that is before its tensors."""
    import gguf

    # The header alone: the library would hold all tensors in memory before it writes one.
    writer = gguf.GGUFWriter(path, architecture)
    try:
        for key, value in metadata.items():
            # Unsigned, or llama.cpp refuses it. By `type`, since a bool is an int too.
            is_count = type(value) is int
            own = gguf.GGUFValueType.get_type(value)
            writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if is_count else own)
        for tensor in tensors:
            kind, shape = gguf.GGMLQuantizationType[_TYPES[tensor.type]], tensor.shape
            nbytes = _num_bytes(tensor)
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()


def _num_bytes(tensor: _GGUFTensor) -> int:
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[_TYPES[tensor.type]]]
    return math.prod(tensor.shape) // block * size


def _append(path: Path, content: Iterable[tuple[str, np.ndarray]], work: Work) -> None:
    """Write tensors, given in parts with their names, each from a multiple of 32 bytes on."""
    with path.open("ab") as file:
        _pad(file)
        for _, parts in groupby(content, key=lambda part: part[0]):
            for _, array in parts:
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                # As bytes: numpy has no buffer for bfloat16.
                work.add(array.nbytes)
            _pad(file)


def _pad(file: Any) -> None:
    from gguf import GGUF_DEFAULT_ALIGNMENT

    file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))


EXPERT = re.compile(r"(\.experts)\.\d+(?=\.)")
_ROUTER = re.compile(r"\.ffn_gate_inp\.weight$")


def _gguf_tensors(
    bound: BoundMap, layout: GGUFMap, values: Json, dtype: GGUFType | None
) -> list[_GGUFTensor]:
    """Return the tensors of a file, experts of a layer together.

    Args:
        bound: The weight map of the model.
        layout: How its family is in such files.
        values: The fields of its `config.json`.
        dtype: Of matrices; each array's own where None. Vectors and routers are float32, in which
            alone llama.cpp computes with them.

    Raises:
        ConfigError: llama.cpp has no place for a tensor, or a row cannot be quantized.
    """
    name_of = gguf_names(layout.architecture, values["num_hidden_layers"])
    found: dict[str, list[_Part]] = {}
    unknown = []
    for piece in bound.pieces:
        for number, hf in enumerate(piece.hf):
            name = name_of(hf)
            if name is None:
                unknown.append(hf)
            else:
                part = _Part(piece, number, gguf_change(layout, hf, values))
                found.setdefault(name, []).append(part)
    if unknown:
        raise ConfigError(
            f"llama.cpp's models of type {layout.architecture} have no place for {len(unknown)} "
            f"tensors:\n{listed(unknown)}",
            where="model",
            hint="write the model for Hugging Face: hf:FOLDER",
        )
    made = (
        _GGUFTensor(name, array.shape, "float32", (partial(_given, array),))
        for name, array in layout.tensors(values).items()
    )
    # The tensor that logits are made with is worth more bits than its share of the file.
    head = "output.weight" if "output.weight" in found else "token_embd.weight"
    of_head: GGUFType | None = "q6_k" if dtype == "q4_k" else dtype
    return [
        *made,
        *(
            _tensor(name, parts, bound, of_head if name == head else dtype)
            for name, parts in found.items()
        ),
    ]


def _gguf_pieces(
    tensors: list[_GGUFTensor], leaves: Leaves
) -> Iterator[tuple[_GGUFTensor, np.ndarray]]:
    """Yield what is in tensors, in their order, some rows at a time."""
    for tensor in tensors:
        for read in tensor.parts:
            array = np.atleast_1d(read(leaves))
            yield from ((tensor, array[at]) for at in pieces(array))


def encoded(tensor: _GGUFTensor, rows: np.ndarray) -> np.ndarray:
    """Return rows of a tensor as they are in a file.

    Raises:
        CheckpointError: A number is not finite in the type.
    """
    if tensor.type not in BLOCK_TYPES:
        return stored(tensor.name, rows, np.dtype(tensor.type))
    exact = stored(tensor.name, rows, np.dtype(np.float32))
    if tensor.type != "q8_0":
        return {"q6_k": quantize_q6_k, "q4_k": quantize_q4_k}[tensor.type](exact)
    from gguf import GGMLQuantizationType, quants

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
        array = hf_arrays(self.piece, leaves)[self.number]
        return array if self.change is None else self.change.forward(array)


def gguf_names(architecture: str, num_layers: int) -> Callable[[str], str | None]:
    """Return what makes the name of a tensor in a file of Hugging Face's; None if unknown."""
    import gguf

    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(numbers[architecture], num_layers)
    suffixes = (".weight", ".bias")
    return lambda hf: known.get_name(EXPERT.sub(r"\1", hf), try_suffixes=suffixes)


def gguf_change(layout: GGUFMap, name: str, values: Json) -> Change | None:
    """Return what becomes of a tensor of Hugging Face in a file; None if nothing does."""
    changes = (change for pattern, change in layout.changes if re.search(pattern, name))
    return next((change(values) for change in changes), None)


def _given(array: np.ndarray, leaves: Leaves) -> np.ndarray:
    return array


def _tensor(name: str, parts: list[_Part], bound: BoundMap, dtype: GGUFType | None) -> _GGUFTensor:
    shape = parts[0].shape if len(parts) == 1 else (len(parts), *parts[0].shape)
    kind: Any = "float32"
    # llama.cpp's router and norms read float32 whatever the file says.
    if len(parts[0].shape) > 1 and not _ROUTER.search(name):
        kind = dtype or str(bound.specs[parts[0].piece.axcore[0].leaf].abstract.dtype)
    block = 32 if kind == "q8_0" else BLOCK
    if kind in BLOCK_TYPES and shape[-1] % block:
        raise ConfigError(
            f"{name} has rows of {shape[-1]} numbers, and {kind} blocks of {block}",
            where="--dtype",
            hint="--dtype float16" if shape[-1] % 32 else "--dtype q8_0",
        )
    return _GGUFTensor(name, shape, kind, tuple(parts))
