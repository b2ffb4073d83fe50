"""`to_gguf`: a model as one file for llama.cpp, written tensor by tensor."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from axcore.errors import ConfigError
from axcore.extras import import_extra
from axcore.interop.copying import map_ahead
from axcore.interop.family import family_named, family_of
from axcore.interop.gguf_map import LENGTH, GGUFMap, Metadata
from axcore.interop.gguf_tensors import GGUFTensor, GGUFType, encoded, gguf_pieces, gguf_tensors
from axcore.interop.new_folder import new_file
from axcore.interop.writing import named_leaves
from axcore.plugins import HuggingFaceFamily, plugin_host
from axcore.progress import Work, working

_TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "q8_0": "Q8_0"}
"""Names of types in the library `gguf`."""
_FILE_TYPES = {"float32": 0, "float16": 1, "q8_0": 7, "bfloat16": 32}
"""llama.cpp's number of a file most of which has a type."""


def to_gguf(
    path: Path | str,
    cfg: Any,
    state: Any,
    *,
    vocabulary: Mapping[str, Any],
    max_length: int,
    dtype: GGUFType | None = None,
) -> str:
    """Writes a model into a new file, whole or not at all, and returns llama.cpp's name of it.

    Args:
        path: Where to write; it may not exist.
        cfg: The model's config.
        state: Its state.
        vocabulary: Metadata of the tokenizer, as `axcore.data.gguf_vocabulary` returns it.
        max_length: Tokens of a row at most.
        dtype: Of matrices; each array's own by default. `q8_0` are whole numbers of eight bits,
            with a scale for each 32.

    Raises:
        ConfigError: llama.cpp has no such model, or `gguf` is not installed.
        CheckpointError: The file exists, a number is not finite, or arrays are on other machines.
    """
    import_extra(
        "gguf", used_by="a file for llama.cpp", error=ConfigError
    )  # before anything is written
    layout, family, values = _layout(cfg)
    values = {**values, LENGTH: max_length}
    metadata, leaves = layout.metadata(values), named_leaves(state)
    tensors = gguf_tensors(family.bind(cfg), layout, values, dtype)
    with new_file(path) as draft:
        general = _general(tensors)
        _write_header(draft, layout.architecture, {**general, **metadata, **vocabulary}, tensors)
        pieces = gguf_pieces(tensors, leaves)
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


def _general(tensors: Iterable[GGUFTensor]) -> Metadata:
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.type] += math.prod(tensor.shape)
    return {
        "general.type": "model",
        "general.file_type": _FILE_TYPES[counts.most_common(1)[0][0]],
        "general.quantization_version": 2,
    }


def _write_header(
    path: Path, architecture: str, metadata: Metadata, tensors: Iterable[GGUFTensor]
) -> None:
    """Writes all of a file that is before its tensors."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    try:
        for key, value in metadata.items():
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


def _num_bytes(tensor: GGUFTensor) -> int:
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[_TYPES[tensor.type]]]
    return math.prod(tensor.shape) // block * size


def _append(path: Path, content: Iterable[tuple[str, np.ndarray]], work: Work) -> None:
    """Writes tensors, given in parts with their names, each from a multiple of 32 bytes on."""
    with path.open("ab") as file:
        _pad(file)
        for _, parts in groupby(content, key=lambda part: part[0]):
            for _, array in parts:
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                work.add(array.nbytes)
            _pad(file)


def _pad(file: Any) -> None:
    from gguf import GGUF_DEFAULT_ALIGNMENT

    file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))
