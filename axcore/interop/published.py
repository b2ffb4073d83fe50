"""Folders of published models: opened, read into a state of ours, and written."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np

from axcore.config import evolve
from axcore.config.json_files import read_json
from axcore.errors import CheckpointError, ConfigError
from axcore.interop.corrections import with_corrections
from axcore.interop.family import Family, family_named, family_of
from axcore.interop.new_folder import new_folder
from axcore.interop.origins import ArraySource
from axcore.interop.reading import published_arrays, published_tensors
from axcore.interop.same_model import check_same_model
from axcore.interop.tensor_files import DTYPES
from axcore.interop.weight_edits import WeightEdit
from axcore.interop.weight_plan import EVERYTHING, Selection, WeightPlan, plan_weights
from axcore.interop.writing import DEFAULT_SHARD_BYTES, write_weights
from axcore.module import DType, DTypes, Module

CONFIG = "config.json"


@attrs.frozen
class Pretrained:
    """A published model, read.

    Args:
        config: Its config.
        model: The module.
        state: Its state, as `functional` takes it, or an engine where it is not read yet.
    """

    config: Any
    model: Module = attrs.field(repr=False)
    state: Any = attrs.field(repr=False)


class PublishedModel:
    """A folder that holds a published model: `config.json`, safetensors, tokenizer files.

    Attributes:
        folder: The folder.
        values: What `config.json` says.
        family: The model's family.
    """

    def __init__(self, folder: Path | str) -> None:
        """Opens a folder; reads no weights.

        Raises:
            CheckpointError: It holds no model, or its `config.json` is damaged.
            ConfigError: Nothing installed knows such models.
        """
        self.folder = Path(folder).expanduser()
        path = self.folder / CONFIG
        if not path.is_file():
            raise CheckpointError(
                f"the folder has no {CONFIG}",
                where=str(self.folder),
                hint="name a folder that holds a published model",
            )
        self.values = read_json(path, CONFIG, error=CheckpointError)
        if "model_type" not in self.values:
            raise ConfigError("config.json names no model_type", where=str(path))
        self.family: Family = family_named(self.values["model_type"])

    @property
    def max_length(self) -> int | None:
        """Tokens of a row at most, where `config.json` says so."""
        return self.values.get(self.family.length)

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """How tensors are quantized, where they are."""
        return self.values.get("quantization_config")

    @cached_property
    def config(self) -> Any:
        """Our config of the model; its parameters are float32 unless that is changed."""
        try:
            return self.family.read(self.values)
        except ConfigError as error:
            error.add_note(f"in {self.folder / CONFIG}")
            raise

    @cached_property
    def dtype(self) -> DType:
        """The dtype that the tensors have.

        Raises:
            CheckpointError: They have several.
        """
        places = published_tensors(self.folder, self.family, self.quantization).values()
        found = {DTYPES[place.dtype]: place.dtype for place in places}
        names: dict[str, DType] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
        if len(found) != 1 or not found.keys() <= names.keys():
            raise CheckpointError(
                f"the tensors are stored as {', '.join(map(str, found.values()))}",
                where=str(self.folder),
                hint="say which dtype they are to become: --dtype float32",
            )
        return names[next(iter(found))]

    def read(self, cfg: Any, wanted: Any, *, seed: int = 0) -> Any:
        """Returns the state of a model; see `plan`, and `WeightPlan.read`."""
        return self.plan(cfg).read(wanted, seed=seed)

    def plan(
        self,
        cfg: Any,
        *,
        selection: Selection = EVERYTHING,
        edits: Sequence[WeightEdit] = (),
        may_differ: Sequence[str] = (),
        adapters: str | None = None,
    ) -> WeightPlan:
        """Returns what is read for a model whose config is this one's in all that changes numbers.

        Args:
            cfg: The model's config; how it is trained, and its dtypes, may differ.
            selection: Which of its arrays are read.
            edits: What is done to weights, which explains further differences.
            may_differ: Globs of the config that may differ besides.
            adapters: A folder of adapters that are read too.

        Raises:
            ConfigError: It is the config of another model.
            CheckpointError: A file or a tensor is not as it should be.
        """
        own, normal = self.config, self.family.normal
        check_same_model(
            (own, cfg), edits, may_differ=may_differ, normal=normal, where=str(self.folder)
        )
        source: ArraySource = published_arrays(self.folder, self.family, own, self.quantization)
        source = with_corrections(source, adapters, (own, cfg))
        return plan_weights((own, cfg), source, selection=selection, edits=edits)


def from_hugging_face(
    folder: Path | str, *, dtype: DType | None = None, on_host: bool = False
) -> Pretrained:
    """Reads a published model onto the first device.

    Args:
        folder: Holds `config.json` and safetensors.
        dtype: What parameters become, and what they compute in; as they are stored by default.
        on_host: Whether arrays stay in their files, for an engine to take one by one.

    Raises:
        ConfigError: `config.json` describes what axcore has no model of.
        CheckpointError: A file or a tensor is not as it should be.
    """
    published = PublishedModel(folder)
    kept = dtype or published.dtype
    cfg = evolve(published.config, dtypes=DTypes(param=kept, compute=kept))
    model = cfg.build()
    wanted = jax.tree.map(
        lambda spec: spec.abstract,
        model.param_specs(),
        is_leaf=lambda one: hasattr(one, "abstract"),
    )
    plan = published.plan(cfg)
    return Pretrained(cfg, model, (plan.unread if on_host else plan.read)(wanted))


def to_hugging_face(
    folder: Path | str,
    cfg: Any,
    state: Any,
    *,
    dtype: DType | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    max_length: int | None = None,
    fields: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> str:
    """Writes a model into a new folder, whole or not at all, and returns its family's name.

    Args:
        folder: Where to write; it may not exist, or must be empty.
        cfg: The model's config.
        state: Its state.
        dtype: Of all tensors; each array's own by default.
        max_shard_bytes: Size of a file of weights at most.
        max_length: Tokens of a row at most, where the model's config does not say.
        fields: More fields of `config.json`.
        files: More files, by name.

    Raises:
        ConfigError: No family of published models has such a model.
        CheckpointError: The folder holds something, or arrays are on other machines.
    """
    name, family, values = family_of(cfg)
    stored = np.dtype(dtype or _commonest_dtype(state))
    content = {
        "architectures": [family.architecture],
        "model_type": name,
        "torch_dtype": str(stored),
        **({} if max_length is None else {family.length: max_length}),
        **values,
        **(fields or {}),
    }
    texts = {CONFIG: (json.dumps(content, indent=2) + "\n").encode(), **(files or {})}
    with new_folder(folder) as draft:
        write_weights(draft, family, cfg, state, dtype=dtype, max_shard_bytes=max_shard_bytes)
        for file, data in texts.items():
            (draft / file).parent.mkdir(exist_ok=True)
            (draft / file).write_bytes(data)
    return name


def _commonest_dtype(state: Any) -> Any:
    """Returns the dtype that most numbers of a state have."""
    counts: Counter[Any] = Counter()
    for leaf in jax.tree.leaves(state):
        counts[leaf.dtype] += leaf.size
    return counts.most_common(1)[0][0]
