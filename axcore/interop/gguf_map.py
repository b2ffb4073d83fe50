"""`GGUFMap`: what llama.cpp calls the models of a family, and what it can say about them.

It starts from what Hugging Face's files have: fields of `config.json` become metadata, tensors keep
their layout but for what `changes` name, and have the names that the library `gguf` knows for them.
A field that no entry takes is an error: llama.cpp would compute another model. The same entries
make fields of the metadata of a file that is read, where a key that no entry takes is an error.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from axcore.errors import ConfigError
from axcore.interop.config_map import Fields, Json
from axcore.interop.weight_map import Chain, JoinAxes, SplitAxis, interleaved, listed

Metadata = dict[str, Any]


@attrs.frozen
class Change:
    """What becomes of a tensor of Hugging Face in a file, and its inverse."""

    forward: Callable[[np.ndarray], np.ndarray]
    inverse: Callable[[np.ndarray], np.ndarray]


@attrs.frozen
class TensorsOfFile:
    """The tensors of a file that is read, as entries look at them.

    Args:
        shapes: By name.
        read: Returns the numbers of one.
    """

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]


class MetadataKeys(Fields):
    """The metadata of a file below its architecture's name, and which of it was read."""

    def __init__(self, values: Json, tensors: TensorsOfFile) -> None:
        super().__init__(values)
        self.tensors = tensors

    def number(self, key: str, default: Any = None) -> Any:
        """Return a number, of a list of one for each layer the one that all have.

        Raises:
            ConfigError: It is none, or layers differ.
        """
        value = self.take(key, default)
        if isinstance(value, list) and len(set(map(str, value))) == 1:
            value = value[0]
        if value is not None and not isinstance(value, int | float):
            raise unreadable_key(key, value, "a number, the same in all layers")
        return value


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

    @abstractmethod
    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return the fields that a file says, the inverse of `metadata`.

        Args:
            keys: What it says, of which those read are crossed off.
            found: The fields of the entries before.

        Raises:
            ConfigError: The model is none of the family.
        """


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

    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return the field; nothing where the file leaves it out."""
        value = keys.number(self.key)
        return {} if value is None else {self.field: value}


class Fixed(GGUFEntry):
    """A field that must have one of these values: llama.cpp computes as they say.

    Args:
        field: The field.
        *values: Its values; the first is that of a file that is read.
        tensor: The tensor whose presence in such a file means the second one.
    """

    def __init__(self, field: str, *values: Any, tensor: str = "") -> None:
        self.field, self.values, self.tensor = field, values, tensor

    def metadata(self, fields: Fields) -> Metadata:
        """Return nothing."""
        value = fields.take(self.field, self.values[0])
        if value not in self.values:
            raise unsaid(self.field, value, f"only {', '.join(map(repr, self.values))}")
        return {}

    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return the field."""
        return {self.field: self.values[self.tensor in keys.tensors.shapes]}


@attrs.frozen
class Unused(GGUFEntry):
    """A key that llama.cpp writes, and that such models do not compute with."""

    key: str

    def metadata(self, fields: Fields) -> Metadata:
        """Return nothing."""
        return {}

    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return nothing."""
        keys.take(self.key, None)
        return {}


class _VocabSize(Key):
    """`vocab_size`, which most files leave to the tensor of embeddings."""

    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return the rows of the embeddings."""
        keys.take(self.key, None)
        shape = keys.tensors.shapes.get("token_embd.weight", ())
        return {self.field: shape[0]} if shape else {}


class _HeadWidth(GGUFEntry):
    """`head_dim`, or the width of the model over its heads."""

    def metadata(self, fields: Fields) -> Metadata:
        """Return the width of keys, of values and of what positions rotate."""
        width = head_width(fields.values)
        fields.take("head_dim", None)
        names = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        return dict.fromkeys(names, width)

    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return `head_dim`."""
        if missing := [name for name in _NEEDED if not found.get(name)]:
            raise ConfigError(
                f"the file does not say what {' and '.join(missing)} are",
                where="metadata",
                hint="fetch the file again",
            )
        width = keys.number("attention.key_length") or head_width(found)
        rotated = keys.number("rope.dimension_count") or width
        if {rotated, keys.number("attention.value_length") or width} != {width}:
            raise unreadable_key(
                "attention.key_length", width, f"positions in {rotated} rows of a head"
            )
        return {"head_dim": width}


_NEEDED = ("hidden_size", "num_attention_heads", "num_hidden_layers")
"""Fields without which the shapes of a model are unknown."""


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

    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return no window."""
        return {"sliding_window": None}


class LocalLayers(GGUFEntry):
    """`layer_types`: which layers have the window."""

    def metadata(self, fields: Fields) -> Metadata:
        """Return a flag for each layer."""
        kinds = fields.take("layer_types")
        return {"attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds]}

    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return the kinds; nothing where a file leaves them to the family, as most do."""
        flags = keys.take("attention.sliding_window_pattern", None)
        if not isinstance(flags, list):
            return {} if flags is None else {"sliding_window_pattern": flags}
        kinds = ["sliding_attention" if is_local else "full_attention" for is_local in flags]
        return {"layer_types": kinds}


@attrs.frozen(kw_only=True)
class GGUFMap:
    """How models of a family are written to a GGUF file, and read from one.

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

    def fields(self, metadata: Json, tensors: TensorsOfFile) -> dict[str, Any]:
        """Return the fields of the `config.json` of a file that is read.

        Args:
            metadata: Of the file.
            tensors: Of the file.

        Raises:
            ConfigError: It has a key that no entry takes, or a value that none has a field for.
        """
        start = f"{self.architecture}."
        own = {
            key.removeprefix(start): one for key, one in metadata.items() if key.startswith(start)
        }
        keys, found = MetadataKeys(own, tensors), dict[str, Any]()
        for entry in self.entries:
            found |= entry.fields(keys, found)
        # What is zero or empty is a feature that is switched off.
        unknown = {k: one for k, one in keys.unread().items() if one and k not in _HARMLESS}
        if unknown:
            shown = listed(f"{start}{key}={value!r:.80}" for key, value in unknown.items())
            raise ConfigError(
                f"the file has {len(unknown)} keys that axcore does not know in models of type "
                f"{self.architecture}, so that numbers might differ:\n{shown}",
                where="metadata",
                hint="fetch the model from Hugging Face as safetensors",
            )
        return found


_HARMLESS = frozenset({"rope.scaling.finetuned", "tensor_data_layout", "attention.causal"})
"""MetadataKeys that change no number of such models."""
LENGTH = "max_position_embeddings"
SIZE_KEYS: tuple[GGUFEntry, ...] = (
    _VocabSize("vocab_size", "vocab_size"),
    Key(LENGTH, "context_length"),
    Key("hidden_size", "embedding_length"),
    Key("num_hidden_layers", "block_count"),
    Key("num_attention_heads", "attention.head_count"),
    Key("num_key_value_heads", "attention.head_count_kv"),
    Key("rms_norm_eps", "attention.layer_norm_rms_epsilon", float),
    _HeadWidth(),
    # Tied where the file has no tensor of the head.
    Fixed("tie_word_embeddings", True, False, tensor="output.weight"),
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
        return Change(
            lambda array: np.asarray(rows((array,))[0]),
            lambda array: np.asarray(rows.inverse((array,))[0]),
        )

    return change


def one_more(values: Json) -> Change:
    """Return the change of a scale that is stored as its distance from one.

    Its inverse is exact for what was in 16 bits before, but for numbers below 2**-16.
    """
    return Change(
        lambda array: array.astype(np.float32) + np.float32(1.0),
        lambda array: array.astype(np.float32) - np.float32(1.0),
    )


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


def unreadable_key(key: str, value: Any, known: str) -> ConfigError:
    """Return the error of a value of a file's metadata that axcore cannot follow."""
    return ConfigError(
        f"the file has {key}={value!r:.80}; axcore reads {known}",
        where=key,
        hint="fetch the model from Hugging Face as safetensors",
    )
