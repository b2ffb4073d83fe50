"""`GGUFMap`: what llama.cpp calls the models of a family, and what it can say about them.

It starts from what Hugging Face's files have: fields of `config.json` become metadata, tensors keep
their layout but for what `changes` name, and have the names that the library `gguf` knows for them.
A field that no entry takes is an error: llama.cpp would compute another model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from axcore.errors import ConfigError
from axcore.interop.config_map import Fields, Json
from axcore.interop.weight_map import Chain, JoinAxes, SplitAxis, interleaved, listed

Metadata = dict[str, Any]
Change = Callable[[np.ndarray], np.ndarray]


class GGUFEntry(ABC):
    """One or more fields of `config.json`, and what they are in a GGUF file."""

    @abstractmethod
    def metadata(self, fields: Fields) -> Metadata:
        """Return what the fields become, by keys below the architecture's name.

        Raises:
            ConfigError: llama.cpp has nothing that says the same.
        """

    def tensors(self, values: Json) -> dict[str, np.ndarray]:
        """Return tensors that the fields become, by name."""
        return {}


@attrs.frozen
class Key(GGUFEntry):
    """A field that is a value of the metadata; left out where it is None.

    Args:
        field: Of `config.json`.
        key: Below the architecture's name.
        kind: The type that the value has there.
        is_needed: Whether llama.cpp computes with a value where a file has none.
    """

    field: str
    key: str
    kind: Callable[[Any], Any] = int
    is_needed: bool = attrs.field(default=False, kw_only=True)

    def metadata(self, fields: Fields) -> Metadata:
        """Return the value."""
        value = fields.take(self.field, None)
        if value is None and self.is_needed:
            raise unsaid(self.field, value, "a value of it in all of them")
        return {} if value is None else {self.key: self.kind(value)}


class Fixed(GGUFEntry):
    """A field that must have one of these values: llama.cpp computes as they say."""

    def __init__(self, field: str, *values: Any) -> None:
        self.field, self.values = field, values

    def metadata(self, fields: Fields) -> Metadata:
        """Return nothing."""
        value = fields.take(self.field, self.values[0])
        if value not in self.values:
            raise unsaid(self.field, value, f"only {', '.join(map(repr, self.values))}")
        return {}


class _HeadWidth(GGUFEntry):
    """`head_dim`, or the width of the model over its heads."""

    def metadata(self, fields: Fields) -> Metadata:
        """Return the width of keys, of values and of what positions rotate."""
        width = head_width(fields.values)
        fields.take("head_dim", None)
        names = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        return dict.fromkeys(names, width)


class UnreachedWindow(GGUFEntry):
    """`sliding_window`, which changes nothing where no row is longer; llama.cpp has none here."""

    def metadata(self, fields: Fields) -> Metadata:
        """Return nothing."""
        window, length = fields.take("sliding_window", None), fields.values[LENGTH]
        if window is not None and window < length:
            raise ConfigError(
                f"sliding_window is {window} and rows have up to {length} tokens; llama.cpp has no "
                "window in such models",
                where="sliding_window",
                hint=f"take rows of {window} tokens at most: data.seq_len",
            )
        return {}


class LocalLayers(GGUFEntry):
    """`layer_types`: which layers have the window."""

    def metadata(self, fields: Fields) -> Metadata:
        """Return a flag for each layer."""
        kinds = fields.take("layer_types")
        return {"attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds]}


@attrs.frozen(kw_only=True)
class GGUFMap:
    """How models of a family are written to a GGUF file.

    Args:
        architecture: llama.cpp's name of it.
        entries: What fields of `config.json` become.
        changes: Regular expressions of names of Hugging Face's tensors, each with a function from
            the fields to a change of such tensors.
    """

    architecture: str
    entries: tuple[GGUFEntry, ...]
    changes: tuple[tuple[str, Callable[[Json], Change]], ...] = ()

    def metadata(self, values: Json) -> Metadata:
        """Return the metadata of a model.

        Args:
            values: The fields of its `config.json`.

        Raises:
            ConfigError: A field has no place in it.
        """
        fields = Fields(values)
        found: Metadata = {}
        for entry in self.entries:
            found |= entry.metadata(fields)
        unknown = fields.unread()
        if unknown:
            shown = listed(f"{name}={value!r}" for name, value in unknown.items())
            raise ConfigError(
                f"llama.cpp's models of type {self.architecture} have nothing for:\n{shown}",
                where="model",
                hint="write the model for Hugging Face: hf:FOLDER",
            )
        return {f"{self.architecture}.{key}": value for key, value in found.items()}

    def tensors(self, values: Json) -> dict[str, np.ndarray]:
        """Return tensors that fields become, by name."""
        return {k: array for entry in self.entries for k, array in entry.tensors(values).items()}


LENGTH = "max_position_embeddings"
SIZE_KEYS: tuple[GGUFEntry, ...] = (
    Key("vocab_size", "vocab_size"),
    Key(LENGTH, "context_length"),
    Key("hidden_size", "embedding_length"),
    Key("num_hidden_layers", "block_count"),
    Key("num_attention_heads", "attention.head_count"),
    Key("num_key_value_heads", "attention.head_count_kv"),
    Key("rms_norm_eps", "attention.layer_norm_rms_epsilon", float),
    _HeadWidth(),
    Fixed("tie_word_embeddings", True, False),  # tied where the file has no tensor of the head
)
"""Of all decoders."""
LLAMA_KEYS: tuple[GGUFEntry, ...] = (
    *SIZE_KEYS,
    Fixed("hidden_act", "silu"),
    Key("intermediate_size", "feed_forward_length"),
)


def interleaved_heads(num_heads: str) -> Callable[[Json], Change]:
    """Return the change from half-split rotary rows to neighbouring pairs, head by head.

    Args:
        num_heads: The field with the number of heads.
    """

    def change(values: Json) -> Change:
        heads = values[num_heads]
        rows = Chain(SplitAxis(heads), interleaved(head_width(values), axis=1), JoinAxes(heads))
        return lambda array: np.asarray(rows((array,))[0])

    return change


def one_more(values: Json) -> Change:
    """Return the change of a scale that is stored as its distance from one."""
    return lambda array: array.astype(np.float32) + np.float32(1.0)


def head_width(values: Json) -> int:
    """Return the width of a head."""
    width: int = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    return width


def unsaid(field: str, value: Any, known: str) -> ConfigError:
    """Return the error of a field that llama.cpp cannot follow."""
    return ConfigError(
        f"{field} is {value!r}, for which llama.cpp has nothing in such models; it has {known}",
        where=field,
        hint="write the model for Hugging Face: hf:FOLDER",
    )
