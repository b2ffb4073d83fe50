"""`adapter_config.json` of PEFT: each field is used, changes no number, or must be off.

Source: Mangrulkar et al. 2022, github.com/huggingface/peft.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from axcore.config.json_files import read_json
from axcore.errors import CheckpointError, ConfigError
from axcore.interop.weight_map import listed

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
        """Returns rank and alpha of a module, as PEFT finds them."""
        rank, alpha = (
            next((size for end, size in pattern.items() if _ends_with(module, end)), default)
            for pattern, default in ((self.ranks, self.rank), (self.alphas, self.alpha))
        )
        return int(rank), float(alpha)

    def scale(self, module: str) -> float:
        """Returns what the correction of a module is multiplied by."""
        rank, alpha = self.sizes(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def is_named(module: str, target: str) -> bool:
    """Whether a name of a list of PEFT's is that of a module, or its end."""
    return module == target or module.endswith(f".{target}")


def _ends_with(module: str, pattern: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


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
