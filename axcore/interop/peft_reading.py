"""Reading adapters in the format of PEFT, the inverse of `axcore.interop.peft`.

Every field of `adapter_config.json` is used, changes no number, or must say that it is off.

Source: Mangrulkar et al. 2022, github.com/huggingface/peft.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from axcore.config import find_config, update_config
from axcore.config.json_files import read_json
from axcore.errors import CheckpointError, ConfigError
from axcore.interop import peft_magnitudes
from axcore.interop.canonical import canonical
from axcore.interop.family import Family, family_of
from axcore.interop.reading import PublishedArrays
from axcore.interop.tensor_files import TensorPlace, tensors_in
from axcore.interop.transforms import Transpose
from axcore.interop.weight_map import BoundMap, Rule, listed, named_specs, same, unstacked
from axcore.layers import Dropout, Linear, LoRALinear

ARRAYS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX, WEIGHT = "base_model.model.", ".weight"
FACTORS = {"lora_A": "lora_down", "lora_B": "lora_up"}
USED = frozenset(
    {
        "base_model_name_or_path",
        "lora_alpha",
        "lora_dropout",
        "peft_type",
        "r",
        "target_modules",
        "use_dora",
        "use_rslora",
    }
)
IRRELEVANT = frozenset(
    {
        "auto_mapping",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
)
"""Fields that change no number once the adapters' tensors say which modules have some."""
MUST_BE = {
    "bias": (None, "none"),
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
    "peft_type": ("LORA",),
    "task_type": (None, "CAUSAL_LM"),
}
"""Values that a field may have; all others change a number, or the base model."""
OFF = frozenset(
    {
        "alora_invocation_tokens",
        "alpha_pattern",
        "arrow_config",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "fan_in_fan_out",
        "kasa_config",
        "layer_replication",
        "loftq_config",
        "lora_bias",
        "lora_ga_config",
        "megatron_config",
        "modules_to_save",
        "monteclora_config",
        "rank_pattern",
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
        dropout: Rate at which they do not see their input, in training.
        use_rslora: Whether it is the second of these.
        use_dora: Whether they have magnitudes.
        targets: `target_modules`.
        base: The model that they correct, where that is said.
    """

    rank: int
    alpha: float
    dropout: float
    use_rslora: bool
    use_dora: bool
    targets: Any
    base: str | None


def read_settings(folder: Path) -> AdapterSettings:
    """Returns the settings of a folder of adapters.

    Raises:
        CheckpointError: The file is damaged.
        ConfigError: A field says what adapters here do not do, or is not known; all are named.
    """
    values = read_json(folder / CONFIG, CONFIG, error=CheckpointError)
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
            hint="merge the adapters into their model with PEFT, and read that model",
        )
    return AdapterSettings(
        rank=int(values["r"]),
        alpha=float(values["lora_alpha"]),
        dropout=float(values.get("lora_dropout", 0.0)),
        use_rslora=bool(values.get("use_rslora")),
        use_dora=bool(values.get("use_dora")),
        targets=values.get("target_modules"),
        base=values.get("base_model_name_or_path"),
    )


@attrs.frozen(slots=False)
class AdapterArrays(PublishedArrays):
    """The arrays of a folder of adapters; of modules without a tensor there are none."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all arrays that have a tensor, by name."""
        of = self.bound.piece_of
        every = super().shapes
        return {n: s for n, s in every.items() if of[self.places[n]].theirs[0] in self.tensors}


def read_peft(folder: Path, cfg: Any) -> tuple[Any, AdapterArrays]:
    """Returns a model's config with the adapters of a folder, and their arrays.

    Args:
        folder: Holds the adapters.
        cfg: The config of the model that they correct, without any.

    Raises:
        ConfigError: No family has the model, or `read_settings` refuses.
        CheckpointError: The tensors are not those of linear layers of the model.
    """
    settings = read_settings(folder)
    _, family, _ = family_of(cfg)
    tensors = _tensors(folder, family, settings)
    modules = sorted({name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in tensors})
    _check_targets(settings.targets, modules, folder)
    rules = [rule for rule in family.weights(canonical(cfg)) if _is_linear(rule)]
    adapted, bound = _adapted(cfg, settings, rules, tensors)
    strange = sorted(tensors.keys() - bound.shapes.keys())
    if strange:
        raise CheckpointError(
            f"{len(strange)} tensors are not of a linear layer of the model, which may be another "
            "one:\n" + listed(strange),
            where=str(folder),
            hint="name the model that the adapters were trained on; those of experts and of fused "
            "projections are not read: merge them with PEFT",
        )
    return adapted, AdapterArrays(folder, bound, tensors)


def _adapted(
    cfg: Any, settings: AdapterSettings, rules: Iterable[Rule], tensors: Mapping[str, Any]
) -> tuple[Any, BoundMap]:
    """Returns the config with adapters where tensors are, and the map of all that it then has."""
    factors = [rule for one in rules for rule in _factor_rules(one)]
    wanted: dict[str, Any] = {}
    for found in find_config(cfg, Linear):
        lora = LoRALinear.Config(
            base=found.node,
            rank=settings.rank,
            alpha=settings.alpha,
            dropout=Dropout.Config(rate=settings.dropout),
            use_rslora=settings.use_rslora,
            use_dora=settings.use_dora,
        )
        bound = _bound(update_config(cfg, {found.path: lora}), factors)
        if bound.shapes.keys() & tensors.keys():
            wanted[found.path] = lora
    adapted = update_config(cfg, wanted) if wanted else cfg
    return adapted, _bound(adapted, factors)


def _bound(cfg: Any, factors: list[Rule]) -> BoundMap:
    """Returns the map of all adapters that the rules fit."""
    known = {re.sub(r"\{\w+\}|(?<=\.)\d+(?=\.)", "#", rule.ours[0]) for rule in factors}
    specs = cfg.build().param_specs()
    other = {
        one.leaf
        for name, one in unstacked(dict(named_specs(specs))).items()
        if re.sub(r"(?<=\.)\d+(?=\.)", "#", name) not in known
    }
    return BoundMap(tuple(factors), specs, ignored=[f"^{re.escape(leaf)}$" for leaf in other])


def _is_linear(rule: Rule) -> bool:
    is_one = len(rule.ours) == len(rule.theirs) == 1 and isinstance(rule.transform, Transpose)
    return is_one and rule.ours[0].endswith(WEIGHT) and ".experts." not in rule.theirs[0]


def _factor_rules(rule: Rule) -> Iterator[Rule]:
    ours, theirs = (names[0].removesuffix(WEIGHT) for names in (rule.ours, rule.theirs))
    for factor, name in FACTORS.items():
        yield Rule(
            (f"{ours}.{name}{WEIGHT}",), (f"{PREFIX}{theirs}.{factor}{WEIGHT}",), Transpose()
        )
    yield same(f"{ours}{peft_magnitudes.OURS}", f"{PREFIX}{theirs}{peft_magnitudes.THEIRS}")


def _tensors(folder: Path, family: Family, settings: AdapterSettings) -> dict[str, TensorPlace]:
    """Returns the tensors of a folder, by the names that the family's map has."""
    if not (folder / ARRAYS).is_file():
        raise CheckpointError(
            f"the folder has no {ARRAYS}",
            where=str(folder),
            hint="save the adapters with safe_serialization=True; other files are not read",
        )
    found: dict[str, TensorPlace] = {}
    for name, place in tensors_in(folder / ARRAYS).items():
        inner = name.removeprefix(PREFIX)
        for pattern, new in family.renamed:
            inner = re.sub(pattern, new, inner)
        found[PREFIX + inner] = place
    endings = _endings(settings)
    known = re.compile(rf"{re.escape(PREFIX)}.+({'|'.join(map(re.escape, endings))})")
    strange = sorted(name for name in found if not known.fullmatch(name))
    if strange or not found:
        raise CheckpointError(
            f"{len(strange)} of {len(found)} tensors are no factors of a linear layer:\n"
            + listed(strange),
            where=str(folder / ARRAYS),
            hint="merge the adapters into their model with PEFT, and read that model",
        )
    _check_complete(found, endings, folder)
    return found


def _endings(settings: AdapterSettings) -> list[str]:
    """Returns what the names of a module's tensors end with."""
    magnitudes = [peft_magnitudes.THEIRS] if settings.use_dora else []
    return [f".{factor}{WEIGHT}" for factor in FACTORS] + magnitudes


def _check_complete(names: Iterable[str], endings: list[str], folder: Path) -> None:
    """Checks that every module has all tensors: one factor alone would correct nothing."""
    there = set(names)
    modules = {name[: name.rindex(".lora_")] for name in there}
    every = [module + ending for module in sorted(modules) for ending in endings]
    missing = [name for name in every if name not in there]
    if missing:
        raise CheckpointError(
            f"{len(missing)} factors are missing, of which there is the other one:\n"
            + listed(missing),
            where=str(folder / ARRAYS),
            hint="fetch the file again",
        )


def _check_targets(targets: Any, modules: list[str], folder: Path) -> None:
    """Checks that the tensors are of the modules that the settings name."""
    if targets is None or targets == "all-linear":
        return
    if isinstance(targets, str):
        strange = [name for name in modules if not re.fullmatch(targets, name)]
        unused = [] if len(strange) < len(modules) else [targets]
    else:
        strange = [n for n in modules if not any(_is_named(n, target) for target in targets)]
        unused = [t for t in targets if not any(_is_named(name, t) for name in modules)]
    if strange or unused:
        problems = [f"{target} is named and has no tensors" for target in unused]
        problems += [f"{name} has tensors and is not named" for name in strange]
        raise CheckpointError(
            "target_modules are not those of the tensors:\n" + listed(problems),
            where=str(folder / CONFIG),
            hint="fetch both files again",
        )


def _is_named(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")
