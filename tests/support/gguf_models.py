"""Small models as GGUF files, and what is in such files."""

from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from numpy_state import numpy_state

from axcore.data import ByteTokenizer, gguf_vocabulary
from axcore.interop import to_gguf

MAX_LENGTH = 128


def write_model(path: Path, cfg: Any, *, scale: float = 1.0, **kept: Any) -> Any:
    """Writes a model of random weights, with the vocabulary of bytes; returns its state."""
    numbers = numpy_state(cfg.build().param_specs())
    state = jax.tree.map(lambda array: jnp.asarray(array * scale, array.dtype), numbers)
    write_state(path, cfg, state, **kept)
    return state


def write_state(path: Path, cfg: Any, state: Any, **kept: Any) -> None:
    """Writes a model, with the vocabulary of bytes where nothing else is said."""
    vocabulary, _ = gguf_vocabulary(ByteTokenizer.Config().build(), cfg.vocab_size)
    kept = {"vocabulary": vocabulary, "max_length": MAX_LENGTH, **kept}
    to_gguf(path, cfg, state, **kept)


def tensors_in(path: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a file in their shapes; numbers in blocks become float32."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found[tensor.name] = array.reshape(tensor.shape[::-1])
    return found


def types_in(path: Path) -> dict[str, str]:
    return {one.name: one.tensor_type.name for one in gguf.GGUFReader(path).tensors}


def metadata_in(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
