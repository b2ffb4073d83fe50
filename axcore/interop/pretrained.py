"""Pretrained checkpoints in Hugging Face's format: opened, read into a state, and written."""

import json
import re
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np

from axcore.config import REQUIRED, Configurable, config, evolve, field_names
from axcore.config.json_files import read_json
from axcore.errors import CheckpointError, ConfigError
from axcore.interop.adapters import join_adapters
from axcore.interop.array_source import ArraySource
from axcore.interop.canonical import check_same_model
from axcore.interop.checkpoint_arrays import (
    DEFAULT_SHARD_BYTES,
    checkpoint_arrays,
    find_checkpoint_tensors,
    selected,
    write_weights,
)
from axcore.interop.family import (
    CheckpointInfo,
    Family,
    exported_files,
    family_for,
    family_of,
    files_beside,
    name_of,
)
from axcore.interop.gguf_checkpoint import GGUFCheckpoint
from axcore.interop.gguf_header import is_gguf
from axcore.interop.quantized import QUANTIZATION, quantized_format, with_quantization
from axcore.interop.reward_models import is_classifier, reward_family
from axcore.interop.tensor_files import new_folder
from axcore.interop.tensor_place import TensorPlace
from axcore.interop.weight_edits import WeightEdit
from axcore.interop.weight_plan import EVERYTHING, Selection, WeightPlan, plan_weights
from axcore.module import DType, DTypes, Module

CONFIG = "config.json"
_STORED: dict[str, DType] = {name: name for name in ("float32", "bfloat16", "float16")}
"""Dtypes of models, by name."""
TOKENS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})


@attrs.frozen
class Pretrained:
    """A pretrained checkpoint, read.

    Args:
        config: Its config.
        model: The module.
        state: Its state, as `functional` takes it, or an engine where it is not read yet.
    """

    config: Any
    model: Module = attrs.field(repr=False)
    state: Any = attrs.field(repr=False)


class PretrainedCheckpoint:
    """A folder that contains a pretrained checkpoint: `config.json`, safetensors, tokenizer files.

    Or a GGUF file, which contains the same.

    Attributes:
        folder: The folder, or the file.
        gguf: What is in the file; None of a folder.
        values: What `config.json` says.
        family: The model's family.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        allow_unknown_fields: bool = False,
        kind: type | None = None,
    ) -> None:
        """Open a folder, or a GGUF file; read no weights.

        Args:
            folder: The folder, or the file.
            allow_unknown_fields: Whether fields of `config.json` that could matter are ignored.
            kind: The Config class of the model that is wanted, `CausalLM.Config` of the language
                model in one of pictures, where the folder can be read as either; None for all.

        Raises:
            CheckpointError: It contains no model, or its `config.json` is damaged.
            ConfigError: Nothing installed knows such models.
        """
        self.folder = Path(folder).expanduser()
        self._allow_unknown_fields = allow_unknown_fields
        self.gguf = GGUFCheckpoint(self.folder) if is_gguf(self.folder) else None
        self.family: Family
        if self.gguf is not None:
            self.values, self.family = self.gguf.values, self.gguf.family
            return
        path = self.folder / CONFIG
        if not path.is_file():
            raise CheckpointError(
                f"the folder has no {CONFIG}",
                where=str(self.folder),
                hint="name a folder that contains a pretrained checkpoint",
            )
        self.values = with_quantization(self.folder, read_json(path, CONFIG, error=CheckpointError))
        if "model_type" not in self.values:
            raise ConfigError("config.json names no model_type", where=str(path))
        self.family = family_for(self.values, kind)
        named, classifier = self.values.get("architectures") or (), self.family.classifier
        if classifier is not None and classifier.architecture in named:
            self.family = classifier
            return
        # At once: a classifier's weights would load, and its head be missing at the end.
        _check_head(self.values, (self.family.architecture, *self.family.headless), str(path))
        if any(map(is_classifier, named)):
            self.family = classifier or reward_family(self.family)

    @property
    def max_length(self) -> int | None:
        """Tokens of a row at most, where `config.json` says so."""
        return self.published.max_length

    @cached_property
    def config(self) -> Any:
        """The model's config; its parameters are float32 unless that is changed."""
        cfg, published = self._described
        return evolve(cfg, published=published) if "published" in field_names(cfg) else cfg

    @property
    def published(self) -> CheckpointInfo:
        """What else the folder says."""
        return self._described[1]

    @cached_property
    def _described(self) -> tuple[Any, CheckpointInfo]:
        allowed = self._allow_unknown_fields
        try:
            cfg, published = self.family.read_all(self.values, allow_unknown_fields=allowed)
        except ConfigError as error:
            error.add_note(f"in {self.folder if self.gguf else self.folder / CONFIG}")
            raise
        if self.gguf is not None:  # its tokenizer is made of it, and written by whoever exports
            return cfg, evolve(published, name=self.folder.stem)
        files, left_out = files_beside(self.folder)
        name = name_of(self.folder)
        return cfg, evolve(published, name=name, files=files, left_out=left_out)

    @cached_property
    def dtype(self) -> DType:
        """The dtype that the tensors have.

        Where some are quantized, it is what `config.json` names, or what the others have.

        Raises:
            CheckpointError: They have several.
        """
        named = str(self.values.get("dtype", self.values.get("torch_dtype")))
        if (self.gguf is not None or QUANTIZATION in self.values) and named in _STORED:
            return _STORED[named]
        places = find_checkpoint_tensors(self.folder, self.family)
        tensors = list(selected(places, self.family, self.values).values())
        if QUANTIZATION in self.values:  # of those that are not dequantized, to float32
            tensors = [one for one in tensors if isinstance(one, TensorPlace)]
        return stored_dtype((one.dtype for one in tensors), self.folder)

    @property
    def _quantized_as(self) -> str | None:
        """The name of the format of quantized weights; None where they are not."""
        if self.gguf is not None:
            return self.gguf.quantized_as and f"GGUF's {self.gguf.quantized_as}"
        settings = self.values.get(QUANTIZATION)
        return None if settings is None else quantized_format(settings).name

    def read(self, cfg: Any, wanted: Any, *, seed: int = 0) -> Any:
        """Return the state of a model; see `plan`, and `WeightPlan.read`."""
        return self.plan(cfg).read(wanted, seed=seed)

    def plan(
        self,
        cfg: Any,
        *,
        selection: Selection = EVERYTHING,
        edits: Sequence[WeightEdit] = (),
        may_differ: Sequence[str] = (),
        adapters: str | None = None,
        specs: Any = None,
    ) -> WeightPlan:
        """Return what is read for a model whose config is this one's in all that changes numbers.

        Args:
            cfg: The model's config; how it is trained, and its dtypes, may differ.
            selection: Which of its arrays are read.
            edits: What is done to weights, which explains further differences.
            may_differ: Globs of what else may differ in the config.
            adapters: A folder of adapters that are read too.
            specs: The model's `param_specs()`, where they are made already.

        Raises:
            ConfigError: It is the config of another model.
            CheckpointError: A file or a tensor is not as it should be.
        """
        own = self.config
        # Most callers change dtypes alone. Comparing canonical configs walks both trees a dozen
        # times, which is most of the time that a small import takes.
        is_own = type(cfg) is type(own) and evolve(cfg, dtypes=own.dtypes) == own
        if edits or may_differ or not is_own:
            check_same_model(
                (own, cfg),
                edits,
                may_differ=may_differ,
                normal=self.family.normal,
                where=str(self.folder),
            )
        specs = cfg.build().param_specs() if specs is None else specs
        # Without an edit the two have the same arrays, so that those of the model serve for both.
        is_same = not edits and not may_differ
        made, its_specs = (cfg, specs) if is_same else (own, None)
        source: ArraySource = (
            checkpoint_arrays(self.folder, self.family, made, self.values, specs=its_specs)
            if self.gguf is None
            else self.gguf.arrays(made, its_specs)
        )
        if (form := self._quantized_as) is not None:
            warnings.warn(
                f"the weights are quantized ({form}); they are dequantized to "
                f"{cfg.dtypes.param} as they are read",
                stacklevel=2,
            )
        if adapters is not None:
            source = join_adapters(source, adapters, (own, cfg))
        return plan_weights((own, cfg), source, selection=selection, edits=edits, specs=specs)


def stored_dtype(dtypes: Iterable[np.dtype[Any]], folder: Path) -> DType:
    """Return the dtype that all tensors of a checkpoint have.

    Raises:
        CheckpointError: They have several.
    """
    found = sorted({str(dtype) for dtype in dtypes})
    # Mixed files have no one dtype to keep, and the
    # largest would double what was meant to be small.
    if len(found) != 1 or found[0] not in _STORED:
        raise CheckpointError(
            f"the tensors are stored as {', '.join(found)}",
            where=str(folder),
            hint="say which dtype they are to become: --dtype float32",
        )
    return _STORED[found[0]]


_OTHER_HEAD = re.compile(
    r"For(?!(CausalLM|ConditionalGeneration|SequenceClassification)$)[A-Z]\w*$|DoubleHeadsModel$"
)


def _check_head(values: Mapping[str, Any], own: tuple[str, ...], where: str) -> None:
    """Check that a model ends as its family's do, or with one label as a reward model.

    Raises:
        ConfigError: Its class in transformers has another one, a classifier for example.
    """
    for name in values.get("architectures") or ():
        # An architecture may be of a family that is known and still have another head.
        if name not in own and _OTHER_HEAD.search(name):
            raise ConfigError(
                f"config.json has the architecture {name}, which is not a language model: its "
                "head is not over tokens",
                where=where,
                hint="name the folder of the language model that it was made of; of other heads, "
                "that of a reward model is read: ...ForSequenceClassification with one label",
            )


def from_hugging_face(
    folder: Path | str,
    *,
    dtype: DType | None = None,
    on_host: bool = False,
    allow_unknown_fields: bool = False,
    kind: type | None = None,
) -> Pretrained:
    """Read a pretrained checkpoint onto the first device.

    Args:
        folder: Contains `config.json` and safetensors.
        dtype: What parameters become, and what they compute in; as they are stored by default.
        on_host: Whether arrays stay in their files, for an engine to take one by one.
        allow_unknown_fields: Whether fields of `config.json` that could matter are ignored, with a
            warning.
        kind: The Config class of the model that is wanted, `CausalLM.Config` of the language model
            in one of pictures, where the folder can be read as either; None for all of it.

    Raises:
        ConfigError: `config.json` describes what axcore has no model of.
        CheckpointError: A file or a tensor is not as it should be.
    """
    published = PretrainedCheckpoint(folder, allow_unknown_fields=allow_unknown_fields, kind=kind)
    # As it is stored: a checkpoint in bfloat16 has nothing that float32 would keep.
    kept = dtype or published.dtype
    cfg = evolve(published.config, dtypes=DTypes(param=kept, compute=kept))
    model = cfg.build()
    specs = model.param_specs()
    wanted = jax.tree.map(
        lambda spec: spec.abstract, specs, is_leaf=lambda one: hasattr(one, "abstract")
    )
    plan = published.plan(cfg, specs=specs)
    return Pretrained(cfg, model, (plan.lazy if on_host else plan.read)(wanted))


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
    """Write a model into a new folder, atomically, and return its family's name.

    A model that was read from a published one is written as that: of its family, with its tokens,
    its length of rows, its settings for generation and its licence.

    Args:
        folder: Where to write; it may not exist, or must be empty.
        cfg: The model's config.
        state: Its state.
        dtype: Of all tensors; each array's own by default.
        max_shard_bytes: Size of a file of weights at most.
        max_length: Tokens of a row at most; those of the pretrained checkpoint by default.
        fields: More fields of `config.json`; `bos_token_id`, `eos_token_id` and `pad_token_id` are
            in `generation_config.json` too.
        files: More files, by name, such as the tokenizer's; by default the checkpoint's own.

    Raises:
        ConfigError: No family of pretrained checkpoints has such a model.
        CheckpointError: The folder is not empty, or arrays are on other machines.
    """
    name, family, values = family_of(cfg)
    stored = np.dtype(dtype or _commonest_dtype(state))
    published: CheckpointInfo | None = getattr(cfg, "published", None)
    if max_length is None and published is not None:
        max_length = published.max_length
    content = {
        "architectures": [family.architecture],
        "model_type": name,
        "torch_dtype": str(stored),
        **({} if max_length is None else {family.length: max_length}),
        **values,
        # Where nothing is known, no token: transformers would take that of another model.
        **(published.fields if published else dict.fromkeys(("bos_token_id", "eos_token_id"))),
        **(fields or {}),
    }
    lost = {name: 0 for name in family.mtp_counts if content.get(name)}
    if lost:
        warnings.warn(
            f"the export has no layers for multi-token prediction: {', '.join(lost)} is 0, where "
            "the pretrained checkpoint has some",
            stacklevel=2,
        )
        content |= lost
    tokens = {name: number for name, number in (fields or {}).items() if name in TOKENS}
    texts = {
        CONFIG: (json.dumps(family.with_parts(content), indent=2, default=dict) + "\n").encode(),
        **exported_files(published, tokens, files),
    }
    # All texts are made before: an error in one of them leaves no gigabytes of weights behind.
    with new_folder(folder) as draft:
        write_weights(draft, family, cfg, state, dtype=dtype, max_shard_bytes=max_shard_bytes)
        for file, data in texts.items():
            (draft / file).parent.mkdir(exist_ok=True)
            (draft / file).write_bytes(data)
    return name


def _commonest_dtype(state: Any) -> Any:
    """Return the dtype that most numbers of a state have."""
    counts: Counter[Any] = Counter()
    for leaf in jax.tree.leaves(state):
        counts[leaf.dtype] += leaf.size
    return counts.most_common(1)[0][0]


class WeightSource(Configurable, ABC):
    """Weights that a run begins with, instead of random ones."""

    @config
    class Config(Configurable.Config["WeightSource"]):
        """Describes where weights come from, and what is done to them.

        Args:
            read: Globs of the arrays that are read, by paths in the model's state; others are
                randomly initialized.
            fresh: Globs of arrays that are not read, but randomly initialized.
            unused: Globs of arrays of the source that the model does not have.
            may_differ: Globs of the model's config that may differ from the source's on purpose,
                `**.position` for one.
            edits: What is done to the weights, in order.
            adapters: A folder of adapters of the source's model, in the format of PEFT for one,
                which are read too. The model has adapters of the same rank and alpha.
        """

        read: tuple[str, ...] = ("**",)
        fresh: tuple[str, ...] = ()
        unused: tuple[str, ...] = ()
        may_differ: tuple[str, ...] = ()
        edits: tuple[WeightEdit, ...] = ()
        adapters: str | None = None

        def completed(self, cfg: Any) -> Any:
            """Return the trainer's config that this is in, with what only the source knows."""
            return cfg

    @abstractmethod
    def plan(self, cfg: Any) -> WeightPlan:
        """Return what a model begins with; read no weights.

        Args:
            cfg: The model's config.

        Raises:
            ConfigError: The weights are another model's.
            CheckpointError: They cannot be read.
        """

    @property
    def selection(self) -> Selection:
        """Which arrays are read."""
        cfg: Any = self.config
        return Selection(read=cfg.read, fresh=cfg.fresh, unused=cfg.unused)


class HuggingFace(WeightSource):
    """The weights of a pretrained checkpoint, which must be the run's but for how it is trained."""

    @config
    class Config(WeightSource.Config):
        """Describes a pretrained checkpoint.

        Args:
            path: The folder that contains it.
            allow_unknown_fields: Whether fields of its `config.json` that could matter are ignored.
        """

        path: str = REQUIRED
        allow_unknown_fields: bool = False

    folder_fields = ("path", "adapters")

    def plan(self, cfg: Any) -> WeightPlan:
        """Return what a model begins with; read no weights."""
        own: Any = self.config
        published = PretrainedCheckpoint(
            own.path, allow_unknown_fields=own.allow_unknown_fields, kind=type(cfg)
        )
        return published.plan(
            cfg,
            selection=self.selection,
            edits=own.edits,
            may_differ=own.may_differ,
            adapters=own.adapters,
        )
