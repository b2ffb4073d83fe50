"""Modifiers of adapters: `LoRA`, `QuantizedBase` as in QLoRA, and `AdapterSlots` to serve many."""

from typing import Any

import attrs

from axcore.config import (
    PositiveInt,
    config,
    config_class,
    evolve,
    field_names,
    find_config,
    suggest_names,
    update_config,
)
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.interop.array_source import ArrayChange
from axcore.interop.weight_edits import CandidateArrays, ModelPair, WeightEdit
from axcore.layers import BatchedLoRALinear, Dropout, Linear, LoRALinear
from axcore.layers.adapters.lora import ADAPTERS, MAGNITUDES
from axcore.layers.quantization import FrozenLinear, with_full_precision_weights
from axcore.layers.quantization.frozen_linear import CODES, FrozenForm, FrozenFormat
from axcore.learner import Learner
from axcore.modifiers.quantization import FULL_PRECISION
from axcore.module import Module
from axcore.plugins import Hardware

ROUTERS = ("**.router.**",)
"""What has no adapters by default: a router trained apart from its experts forgets them."""


@config
class LoRA:
    """Put a `LoRALinear` around linear layers, and freeze all else but the head of a reward model.

    Args:
        targets: Paths or globs of linear layers, or of modules that contain some.
        linear: Only layers of this class, as text.
        exclude: Globs of the paths of layers that get none.
        rank: Width of the corrections.
        alpha: They are multiplied by `alpha / rank`.
        dropout: Rate at which they do not see their input, in training.
        use_rslora: They are multiplied by `alpha / sqrt(rank)`: rank-stabilised LoRA.
        use_dora: The lengths of corrected weights' columns are trained too: DoRA.
    """

    targets: tuple[str, ...] = ("**",)
    linear: str = "axcore.layers:Linear"
    exclude: tuple[str, ...] = ROUTERS
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with adapters; a trainer's learner trains them, and what is new.

        Raises:
            ConfigError: A target matches no linear layer, or adapters are there already.
        """
        there = find_config(cfg, LoRALinear)
        if there:
            raise ConfigError(
                f"{there[0].path} has an adapter already; LoRA was applied twice",
                where=there[0].path,
                hint="apply it once, with all targets",
            )
        changes: dict[str, Any] = {
            path: LoRALinear.Config(
                base=base,
                rank=self.rank,
                alpha=self.alpha,
                dropout=Dropout.Config(rate=self.dropout),
                use_rslora=self.use_rslora,
                use_dora=self.use_dora,
            )
            for path, base in self._targets(cfg).items()
        }
        trainable = (*ADAPTERS, *MAGNITUDES) if self.use_dora else ADAPTERS
        new = (f"{path.removeprefix('model.')}.**" for path in _new_paths(cfg))
        trainable = (*trainable, *new)
        for learner in find_config(cfg, Learner):
            changes[learner.path] = evolve(learner.node, trainable=trainable)
        return update_config(cfg, changes)

    def _targets(self, cfg: Any) -> dict[str, Any]:
        """Return the linear layers that are meant, by path."""
        linears = {found.path: found.node for found in find_config(cfg, config_class(self.linear))}
        excluded = {path for glob in self.exclude for path in _excluded(glob, list(linears))}
        for new in _new_paths(cfg):
            excluded |= {path for path in linears if path.startswith(f"{new}.")}
        meant: dict[str, Any] = {}
        for glob in self.targets:
            below = [path for path in linears if _is_at_or_below(glob, path)]
            if not below:
                raise self._no_linear(cfg, glob, list(linears))
            meant.update({path: linears[path] for path in below if path not in excluded})
        if not meant:
            raise ConfigError(
                f"LoRA has nothing to adapt: all {len(linears)} linear layers are excluded",
                where="LoRA.exclude",
                hint="exclude fewer of them",
            )
        return meant

    def _no_linear(self, cfg: Any, glob: str, linears: list[str]) -> ConfigError:
        there = [found for found in find_config(cfg, lambda _: True) if _is_at(glob, found.path)]
        what = f"{glob!r} matches nothing"
        if there:
            kind = type(there[0].node).__qualname__.removesuffix(".Config")
            what = f"{there[0].path} is a {kind}, which is not a linear layer and holds none"
        return ConfigError(
            f"LoRA cannot be put there: {what}",
            where="LoRA.targets",
            hint=suggest_names(glob, linears) if linears else "name a config with linear layers",
        )


def _excluded(glob: str, linears: list[str]) -> list[str]:
    found = [path for path in linears if _is_at(glob, path)]
    if not found and glob not in ROUTERS:
        raise ConfigError(
            f"exclude names {glob!r}, which matches no linear layer",
            where="LoRA.exclude",
            hint=suggest_names(glob, linears),
        )
    return found


def _new_paths(cfg: Any) -> list[str]:
    """Return the paths of what is trained in full in any fine-tuning, as it begins at random."""
    return [one.path for one in find_config(cfg, Module) if one.node.is_new_in_fine_tuning]


def _is_at(glob: str, path: str) -> bool:
    return matches(parse_pattern(glob), parse_pattern(path))


def _is_at_or_below(glob: str, path: str) -> bool:
    steps = parse_pattern(path)
    return any(matches(parse_pattern(glob), steps[:end]) for end in range(1, len(steps) + 1))


_WITHOUT_ADAPTERS = (*FULL_PRECISION, "**.expert.**")
"""What has no adapters by default: an expert's rows are of many texts."""


@config
class AdapterSlots:
    """Put a `BatchedLoRALinear` around every `Linear`, but for those excluded.

    Args:
        num_adapters: The most at once.
        rank: The largest rank.
        exclude: Globs of the paths of layers that have none.
    """

    num_adapters: PositiveInt = 4
    rank: PositiveInt = 16
    exclude: tuple[str, ...] = _WITHOUT_ADAPTERS

    def apply(self, cfg: Any, hardware: Hardware | None = None) -> Any:
        """Return `cfg` with slots for adapters."""
        globs = [parse_pattern(glob) for glob in self.exclude]
        return update_config(
            cfg,
            {
                found.path: BatchedLoRALinear.Config(
                    base=found.node, num_adapters=self.num_adapters, rank=self.rank
                )
                for found in find_config(cfg, Linear)
                if type(found.node) is Linear.Config
                if not any(matches(glob, parse_pattern(found.path)) for glob in globs)
            },
        )


@config
class QuantizedBase:
    """Put a `FrozenLinear` in the place of every plain `Linear` that is not trained.

    Applied after `LoRA`, which freezes them. Weights that a run begins with are quantized as they
    are read.

    Args:
        format: "nf4" or "int8".
        block_size: Numbers of a column that share a scale in NF4.
        double_quant: Whether the scales of NF4 are kept in eight bits.
        exclude: Globs of the paths of layers that keep full precision.
    """

    format: FrozenFormat = "nf4"
    block_size: PositiveInt = 64
    double_quant: bool = False
    exclude: tuple[str, ...] = FULL_PRECISION

    def apply(self, cfg: Any, hardware: Hardware | None = None) -> Any:
        """Return `cfg` with frozen weights in few bits.

        Raises:
            ConfigError: The model trains its linear layers, or none is left to quantize.
        """
        self._check_frozen(cfg)
        corrected = {found.path for found in find_config(cfg, _is_correction)}
        globs = [parse_pattern(glob) for glob in self.exclude]
        changes: dict[str, Any] = {
            found.path: self._frozen(found.node)
            for found in find_config(cfg, Linear)
            # Factors of adapters are linear layers too, the only ones that are trained.
            if type(found.node) is Linear.Config and not _is_factor(found.path, corrected)
            if not any(matches(glob, parse_pattern(found.path)) for glob in globs)
        }
        if not changes:
            raise ConfigError(
                f"no weight can be kept in {self.format}: all plain linear layers are excluded",
                where="QuantizedBase.exclude",
                hint="apply it once, and exclude fewer of them",
            )
        source = getattr(cfg, "init_from", None)
        if source is not None:
            edit = FreezeWeights(
                format=self.format, block_size=self.block_size, double_quant=self.double_quant
            )
            changes["init_from"] = evolve(source, edits=(*source.edits, edit))
        return update_config(cfg, changes)

    def _check_frozen(self, cfg: Any) -> None:
        trained = [one for one in find_config(cfg, Learner) if one.node.trainable == ("**",)]
        if trained or not find_config(cfg, _is_correction):
            raise ConfigError(
                "QuantizedBase has nothing to freeze: the model's linear layers are trained",
                where="learner.trainable",
                hint="apply adapters before: --modify lora --modify quantized_base",
            )

    def _frozen(self, linear: Any) -> FrozenLinear.Config:
        shared = (set(field_names(linear)) & set(field_names(FrozenLinear.Config()))) - {"remat"}
        kept = {name: getattr(linear, name) for name in shared}
        return FrozenLinear.Config(
            **kept,
            format=self.format,
            block_size=self.block_size,
            double_quant=self.double_quant,
        )


def _is_correction(node: Any) -> bool:
    """Whether a config corrects a base by two factors."""
    return {"base", "rank", "down", "up"} <= set(field_names(node))


def _is_factor(path: str, corrected: set[str]) -> bool:
    parent, _, name = path.rpartition(".")
    return parent in corrected and name in ("down", "up")


_STEM = "weight"


@attrs.frozen
class Frozen(ArrayChange):
    """One of the arrays that a weight is kept as."""

    form: FrozenForm
    part: str

    def __call__(self, array: Any) -> Any:
        """Return the array."""
        return self.form.kept(array)[self.part]

    def __str__(self) -> str:
        return f"kept in {self.form.format}, {self.part}"


@config
class FreezeWeights(WeightEdit):
    """Weights in few bits; the modifier `quantized_base` adds it, see there for its fields."""

    format: FrozenFormat = "nf4"
    block_size: int = 64
    double_quant: bool = False

    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return what frozen weights are kept as, in the place of each."""
        form = FrozenForm(self.format, self.block_size, self.double_quant)
        stems = [name.removesuffix(CODES) for name in models.shapes if name.endswith(f".{CODES}")]
        arrays = dict(candidates.arrays)
        _check_no_lengths(stems, arrays)
        for stem in stems:
            weight = arrays.pop(f"{stem}{_STEM}", None)
            if weight is None:
                continue  # what has no source is named with all others that have none
            for name, shape in models.shapes.items():
                if name.startswith(f"{stem}{_STEM}_"):
                    part = name.removeprefix(stem)
                    arrays[name] = weight.changed(Frozen(form, part), shape)
        return attrs.evolve(candidates, arrays=arrays)

    def undone(self, target: Any, source: Any) -> Any:
        """Return the config with full-precision weights."""
        return with_full_precision_weights(target)


def _check_no_lengths(stems: list[str], arrays: Any) -> None:
    """Check that no adapter has lengths of columns, which rounding the base would change."""
    doubled = [stem for stem in stems if f"{stem}lora_magnitude.change" in arrays]
    if doubled:
        raise ConfigError(
            f"adapters with magnitudes are read next to a quantized base: {doubled[0]}"
            "lora_magnitude is for the columns of the full-precision weight",
            where="init_from.adapters",
            hint="read them without quantized_base",
        )
