"""`GGUFCheckpoint`: a GGUF file as the folder that Hugging Face would have of the model."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from axcore.errors import CheckpointError, ConfigError
from axcore.interop.checkpoint_arrays import CheckpointArrays
from axcore.interop.family import ADAPTER_ARRAYS, TRAINING_ONLY, Family, family_named
from axcore.interop.gguf_file import EXPERT, gguf_change, gguf_names
from axcore.interop.gguf_header import GGUFContent, GGUFPlace, read_gguf
from axcore.interop.gguf_map import Change, TensorsOfFile
from axcore.interop.quantized import Tensor
from axcore.module import DType
from axcore.plugins import HuggingFaceFamily, plugin_host

_DTYPES: Mapping[str, DType] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NUMBER = re.compile(r"\.experts\.(\d+)\.")


@attrs.frozen
class _Changed:
    """A tensor of a file as Hugging Face has it.

    Args:
        place: Where it is.
        change: What became of it.
    """

    place: GGUFPlace
    change: Change | None

    @property
    def file(self) -> Path:
        """The file that contains it."""
        return self.place.file

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its numbers."""
        return self.place.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.place.shape

    def read(self) -> np.ndarray:
        """Return it, dequantized."""
        array = self.place.read()
        return array if self.change is None else self.change.inverse(array)


class GGUFCheckpoint:
    """A model in a GGUF file, or in several.

    Attributes:
        content: What is in them.
        values: The fields of the `config.json` that the model would have.
        family: The model's family.
    """

    def __init__(self, path: Path) -> None:
        """Open a file; read no weights.

        Args:
            path: The file, or any of several that are numbered.

        Raises:
            CheckpointError: A file is missing or damaged.
            ConfigError: Nothing installed knows such models.
        """
        self.content: GGUFContent = read_gguf(path)
        self.name, self.family, fields = self._described()
        _check_counts(fields, self.content)
        self.values = {
            "model_type": self.name,
            "architectures": [self.family.architecture],
            "torch_dtype": self.dtype,
            **fields,
        }

    @property
    def dtype(self) -> DType:
        """What weights become: what they are stored as; bfloat16 where they are quantized."""
        return _DTYPES.get(self.content.commonest_type, "bfloat16")

    @property
    def quantized_as(self) -> str | None:
        """The name of the type that most numbers are quantized to; None where they are not."""
        kind = self.content.commonest_type
        return None if kind in _DTYPES else kind

    def arrays(self, cfg: Any, specs: Any = None) -> CheckpointArrays:
        """Return the arrays of the model.

        Args:
            cfg: Its config.
            specs: Its `param_specs()`, where they are made already.
        """
        bound = self.family.bind(cfg, ignored=(*TRAINING_ONLY, *ADAPTER_ARRAYS), specs=specs)
        layout = self.family.gguf
        assert layout is not None
        # Files leave it out where all heads have keys of their own.
        values = {"num_key_value_heads": self.values["num_attention_heads"], **self.values}
        name_of = gguf_names(layout.architecture, values["num_hidden_layers"])
        rest = {n: one for n, one in self.content.tensors.items() if n not in self._said}
        tensors: dict[str, Tensor] = {}
        used = set()
        for hf in bound.shapes:
            name = name_of(hf)
            if name not in rest:
                continue  # reported with all others that are missing
            used.add(name)
            place, expert = rest[name], _NUMBER.search(hf)
            # Experts of a layer are one tensor there.
            if expert is not None and EXPERT.search(hf) and len(place.shape) > 2:
                place = place.part(int(expert[1]))
            tensors[hf] = _Changed(place, gguf_change(layout, hf, values))
        unknown = {name: place for name, place in rest.items() if name not in used}
        return CheckpointArrays(self.content.path, bound, {**tensors, **unknown})

    @cached_property
    def _said(self) -> frozenset[str]:
        """The tensors that are fields of a `config.json`."""
        layout = self.family.gguf
        assert layout is not None
        return frozenset(layout.tensors(self.values))

    def _described(self) -> tuple[str, Family, dict[str, Any]]:
        """Return the family of the model, its name, and the fields of its `config.json`.

        Raises:
            ConfigError: No family has such a model.
        """
        metadata = self.content.metadata
        architecture = metadata.get("general.architecture")
        records = sorted(
            plugin_host().records(HuggingFaceFamily),
            key=lambda one: (one.plugin != "core", one.name),
        )
        families = [(record.name, family_named(record.name)) for record in records]
        maps = [(name, family, family.gguf) for name, family in families if family.gguf]
        errors = []
        for name, family, layout in maps:
            if layout.architecture != architecture:
                continue
            try:
                # What several families have, as Llama's without experts, is of the first one.
                return name, family, _known(family, layout.fields(metadata, self._tensors()))
            except ConfigError as error:
                errors.append(error)
        if errors:
            errors[0].add_note(f"in {self.content.path}")
            raise errors[0]
        known = dict.fromkeys(layout.architecture for _, _, layout in maps)
        raise ConfigError(
            f"nothing installed reads models of llama.cpp's type {architecture!r}; these are read: "
            + ", ".join(known),
            where=str(self.content.path),
            hint="fetch the model from Hugging Face as safetensors",
        )

    def _tensors(self) -> TensorsOfFile:
        tensors = self.content.tensors
        shapes = {name: place.shape for name, place in tensors.items()}
        return TensorsOfFile(shapes, lambda name: tensors[name].read())


def _check_counts(fields: Mapping[str, Any], content: GGUFContent) -> None:
    """Check that there are no more layers, heads or experts than tensors can be of.

    Before anything is made for each of them: a number may be damaged, and memory would not do.

    Raises:
        CheckpointError: There are.
    """
    sizes = [size for place in content.tensors.values() for size in place.shape]
    limit = max(len(content.tensors), *sizes)
    for name, count in fields.items():
        if name.startswith("num_") and not (type(count) is int and 0 < count <= limit):
            raise CheckpointError(
                f"the file says that {name} is {count!r:.80}; no tensor has more than {limit:,} "
                "rows",
                where=str(content.path),
                hint="fetch the file again",
            )


def _known(family: Family, fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields without a `head_dim` that the family has none of and that all others imply."""
    names = {getattr(entry, "name", "") for entry in family.config}
    implied = fields["hidden_size"] // fields["num_attention_heads"]
    if "head_dim" in names or fields.get("head_dim") != implied:
        return fields
    return {name: value for name, value in fields.items() if name != "head_dim"}
