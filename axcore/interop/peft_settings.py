"""What PEFT's adapters say: `adapter_config.json`, and the tensors of the base that they replace.

Each field of the config is used, changes no number, or must be off.

Source: Mangrulkar et al. 2022, github.com/huggingface/peft.
"""

import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from axcore.config.json_files import read_json
from axcore.errors import CheckpointError, ConfigError
from axcore.interop.array_source import ArraySource
from axcore.interop.checkpoint_arrays import CheckpointArrays
from axcore.interop.family import ADAPTER_ARRAYS, TRAINING_ONLY, Family
from axcore.interop.host_arrays import are_same
from axcore.interop.quantized import Tensor
from axcore.interop.tensor_place import TensorPlace
from axcore.interop.weight_map import BoundMap, listed

ARRAYS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
MERGE = "merge the adapters into their model with PEFT, and read that model"
USED = frozenset(
    {
        "alpha_pattern",
        "base_model_name_or_path",
        "bias",
        "exclude_modules",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "modules_to_save",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "use_dora",
        "use_rslora",
    }
)
IRRELEVANT = frozenset(
    {
        "auto_mapping",
        "ensure_weight_tying",
        "fan_in_fan_out",
        "inference_mode",
        "layers_pattern",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
)
"""Fields that change no number once the adapters' tensors say which modules have some.

`fan_in_fan_out` says how the base is stored, which its family's map knows; PEFT corrects it too.
`ensure_weight_tying` shows in the tensors of both tied modules, which then are equal.
"""
MUST_BE = {
    "bias": (None, "none", "all", "lora_only"),
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
    "peft_type": ("LORA",),
    "task_type": (None, "CAUSAL_LM"),
}
"""Values that a field may have; all others change a number, or the base model."""
OFF = frozenset(
    {
        "alora_invocation_tokens",
        "arrow_config",
        "corda_config",
        "eva_config",
        "kasa_config",
        "layer_replication",
        "loftq_config",
        "lora_bias",
        "lora_ga_config",
        "megatron_config",
        "monteclora_config",
        "target_parameters",
        "trainable_token_indices",
        "use_bdlora",
        "use_qalora",
        "velora_config",
    }
)
"""Fields that must be left out, null, false or empty."""


@attrs.frozen
class AdapterSettings:
    """What `adapter_config.json` says.

    Args:
        rank: Width of the corrections.
        alpha: They are multiplied by `alpha / rank`, or by `alpha / sqrt(rank)`.
        ranks: Other ranks, by the ends of modules' names, as regular expressions.
        alphas: Other alphas, as `ranks`.
        dropout: Rate at which they do not see their input, in training.
        use_rslora: Whether it is the second of these.
        use_dora: Whether they have magnitudes.
        targets: `target_modules`.
        excluded: `exclude_modules`.
        saved: `modules_to_save`.
        is_of_all_layers: Whether `layers_to_transform` leaves none out.
        base: The model that they correct, where that is said.
    """

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    dropout: float
    use_rslora: bool
    use_dora: bool
    targets: Any
    excluded: Any
    saved: tuple[str, ...]
    is_of_all_layers: bool
    base: str | None

    def sizes(self, module: str) -> tuple[int, float]:
        """Return rank and alpha of a module, as PEFT finds them."""
        rank, alpha = (
            next((size for end, size in pattern.items() if _ends_with(module, end)), default)
            for pattern, default in ((self.ranks, self.rank), (self.alphas, self.alpha))
        )
        return int(rank), float(alpha)

    def scale(self, module: str) -> float:
        """Return what the change of a module is multiplied by."""
        rank, alpha = self.sizes(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def is_named(module: str, target: str) -> bool:
    """Whether a name of a list of PEFT's is that of a module, or its end."""
    return module == target or module.endswith(f".{target}")


def _ends_with(module: str, pattern: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def read_settings(folder: Path) -> AdapterSettings:
    """Return the settings of a folder of adapters.

    Raises:
        CheckpointError: The file is damaged.
        ConfigError: A field says what adapters here do not do, or is not known; all are named.
    """
    values = read_json(folder / CONFIG, CONFIG, error=CheckpointError)
    # A field that is not known may change numbers, so it is an error, as in config maps.
    known = USED | IRRELEVANT | MUST_BE.keys() | OFF
    problems = [f"{name} is {values[name]!r}, which is not known" for name in values.keys() - known]
    problems += [
        f"{name} is {values[name]!r}; read are {', '.join(map(repr, allowed))}"
        for name, allowed in MUST_BE.items()
        if values.get(name) not in allowed
    ]
    problems += [f"{name} is {values[name]!r}" for name in OFF & values.keys() if values[name]]
    problems += [f"{name} is missing" for name in ("r", "lora_alpha") if name not in values]
    if problems:
        raise ConfigError(
            f"{CONFIG} has {len(problems)} fields for which there are no adapters here:\n"
            + listed(sorted(problems)),
            where=str(folder),
            hint=MERGE,
        )
    return AdapterSettings(
        rank=int(values["r"]),
        alpha=float(values["lora_alpha"]),
        ranks=values.get("rank_pattern") or {},
        alphas=values.get("alpha_pattern") or {},
        dropout=float(values.get("lora_dropout", 0.0)),
        use_rslora=bool(values.get("use_rslora")),
        use_dora=bool(values.get("use_dora")),
        targets=values.get("target_modules"),
        excluded=values.get("exclude_modules") or (),
        saved=tuple(values.get("modules_to_save") or ()),
        is_of_all_layers=values.get("layers_to_transform") is None,
        base=values.get("base_model_name_or_path"),
    )


WEIGHT, _BASE = ".weight", ".base_layer."
LINEAR = (".lora_A.weight", ".lora_B.weight")
EMBEDDING = (".lora_embedding_A", ".lora_embedding_B")


@attrs.frozen
class Added:
    """A change that is added to a weight when that is read.

    Args:
        down: A, `(rank, inputs)`.
        up: B, `(outputs, rank)`.
        scale: Of the change.
        is_embedding: Whether the weight is a table, `(inputs, outputs)`.
    """

    down: TensorPlace
    up: TensorPlace
    scale: float
    is_embedding: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight that it fits."""
        shape = (self.up.shape[0], self.down.shape[-1])
        return shape[::-1] if self.is_embedding else shape


@attrs.frozen
class _AddedTo:
    """A tensor of a base with a change added, in float32.

    Args:
        base: The tensor.
        added: The change.
    """

    base: Tensor
    added: Added

    @property
    def file(self) -> Path:
        """The file of the change."""
        return self.added.up.file

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the sum."""
        return np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the base."""
        return self.base.shape

    def read(self) -> np.ndarray:
        """Return the sum."""
        up, down = (one.read().astype(np.float32) for one in (self.added.up, self.added.down))
        change = self.added.scale * (up @ down)
        if self.added.is_embedding:
            change = change.T
        whole: np.ndarray = self.base.read().astype(np.float32) + change
        return whole


@attrs.frozen
class Replaced:
    """What is read instead of tensors of a base.

    Args:
        folder: Of the adapters.
        whole: Tensors that replace others, by the base's names.
        added: Products of factors that are added to tensors, by the base's names.
        leaves: The names in the model's state of what `whole` is of.
    """

    folder: Path
    whole: Mapping[str, TensorPlace] = {}
    added: Mapping[str, Added] = {}
    leaves: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is replaced."""
        return bool(self.whole or self.added)

    @property
    def names(self) -> list[str]:
        """The names of the base's tensors that it changes."""
        return sorted({*self.whole, *self.added})

    def __call__(self, source: ArraySource) -> ArraySource:
        """Return the arrays of a base with what it changes in them.

        Raises:
            ConfigError: The base is a run, whose arrays have other names.
        """
        if not isinstance(source, CheckpointArrays):
            raise ConfigError(
                f"the adapters change weights of their base: {', '.join(self.names)}; these are "
                "read onto a pretrained checkpoint, not onto a run",
                where=str(self.folder),
                hint="write the run as a pretrained checkpoint first: axcore convert RUN hf:FOLDER",
            )
        tensors: dict[str, Tensor] = {**source.tensors, **self.whole}
        for name, added in self.added.items():
            tensors[name] = _AddedTo(tensors[name], added)
        return attrs.evolve(source, tensors=tensors)


def replaced(
    folder: Path,
    tensors: Mapping[str, TensorPlace],
    settings: AdapterSettings,
    base: tuple[Any, Family],
) -> Replaced:
    """Return what the tensors of adapters that are of no linear layer change in their base.

    Args:
        folder: Of the adapters.
        tensors: These tensors, by the base's names but for what adapters add to them.
        settings: What `adapter_config.json` says.
        base: The base's config, and its family.

    Raises:
        CheckpointError: The base has no such tensors, or a module that is named has none.
        ConfigError: The base ties two tensors, of which they change one.
    """
    if not tensors and not settings.saved:
        return Replaced(folder)
    cfg, family = base
    bound = family.bind(cfg, ignored=(*TRAINING_ONLY, *ADAPTER_ARRAYS))
    added, used = _added(tensors, settings)
    rest = {name: one for name, one in tensors.items() if name not in used}
    whole = {name.replace(_BASE, "."): one for name, one in rest.items()}
    _check_saved(folder, whole, settings, bound)
    _untie(folder, whole, added, family, bound)
    _check_tensors(folder, whole, added, bound)
    if added:
        warnings.warn(
            f"no adapter layer here adapts {', '.join(sorted(added))}: these adapters are added "
            "to the weights, and are not trained as adapters any more",
            stacklevel=2,
        )
    trained = whole.keys() - added.keys()  # a base that is stored with its adapters is frozen
    pieces = [piece for piece in bound.pieces if not trained.isdisjoint(piece.hf)]
    leaves = dict.fromkeys(one.leaf for piece in pieces for one in piece.axcore)
    return Replaced(folder, whole, added, tuple(leaves))


def _added(
    tensors: Mapping[str, TensorPlace], settings: AdapterSettings
) -> tuple[dict[str, Added], set[str]]:
    """Return the changes of weights by pairs of factors, and the names of the factors."""
    found: dict[str, Added] = {}
    used: set[str] = set()
    for down, up in (LINEAR, EMBEDDING):
        for name in tensors:
            module = name.removesuffix(down)
            if module != name and module + up in tensors:
                pair = (tensors[name], tensors[module + up])
                scale = settings.scale(module)
                found[module + WEIGHT] = Added(*pair, scale, is_embedding=down == EMBEDDING[0])
                used |= {name, module + up}
    return found, used


def _untie(
    folder: Path,
    whole: dict[str, TensorPlace],
    added: Mapping[str, Added],
    family: Family,
    bound: BoundMap,
) -> None:
    """Take out the second of two tied tensors that are changed alike.

    Raises:
        ConfigError: They are not: a model with the adapters does not tie them.
    """
    for again, original in family.copies.items():
        changed = {again, original} & (whole.keys() | added.keys())
        if again in bound.shapes or not changed:
            continue
        one, other = whole.get(again), whole.get(original)
        is_same = one is not None and other is not None and are_same(one.read(), other.read())
        if added.keys() & changed or not is_same:
            raise ConfigError(
                f"the adapters change {', '.join(sorted(changed))}, and their model has one tensor "
                f"for {again} and {original}",
                where=str(folder),
                hint="save the model with a head of its own (tie_word_embeddings false), and name "
                "it: --base FOLDER",
            )
        del whole[again]


def _check_tensors(
    folder: Path,
    whole: Mapping[str, TensorPlace],
    added: Mapping[str, Added],
    bound: BoundMap,
) -> None:
    """Check that tensors are of the model, and have its shapes."""
    shapes = [(name, one.shape) for name, one in whole.items()]
    shapes += [(name, one.shape) for name, one in added.items()]
    problems = [
        f"{name} has shape {list(shape)}; the model's has {list(bound.shapes[name])}"
        if name in bound.shapes
        else f"{name} is not of the model"
        for name, shape in sorted(shapes)
        if bound.shapes.get(name) != shape
    ]
    if problems:
        raise CheckpointError(
            f"{len(problems)} tensors of the adapters do not fit the model, which may be another "
            "one:\n" + listed(problems),
            where=str(folder),
            hint=f"name the model that the adapters were trained on; or {MERGE}",
        )


def _check_saved(
    folder: Path, whole: Mapping[str, TensorPlace], settings: AdapterSettings, bound: BoundMap
) -> None:
    """Check that modules that are named as saved have tensors."""
    there = {name.rpartition(".")[0] for name in whole}
    known = there | {name.rpartition(".")[0] for name in bound.shapes}
    missing = [
        module
        for module in sorted(known - there)
        if any(is_named(module, name) for name in settings.saved)
    ]
    missing += [n for n in settings.saved if not any(is_named(module, n) for module in known)]
    if missing:
        raise CheckpointError(
            "modules_to_save names modules without tensors:\n" + listed(missing),
            where=str(folder),
            hint="fetch both files again",
        )
