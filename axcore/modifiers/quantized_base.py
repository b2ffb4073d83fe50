"""`QuantizedBase`: what adapters correct is kept in few bits, as in QLoRA."""

from typing import Any

import attrs

from axcore.config import PositiveInt, config, evolve, field_names, find_config, update_config
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.interop.array_source import ArrayChange
from axcore.interop.weight_edits import CandidateArrays, ModelPair, WeightEdit
from axcore.layers import Linear
from axcore.layers.quantization import FrozenLinear, with_full_precision_weights
from axcore.layers.quantization.frozen_linear import CODES, FrozenForm, FrozenFormat
from axcore.learner import Learner
from axcore.modifiers.quantization import FULL_PRECISION
from axcore.plugins import Hardware


@config
class QuantizedBase:
    """Puts a `FrozenLinear` in the place of every plain `Linear` that is not trained.

    Applied after `LoRA`, which freezes them. Weights that a run begins with are quantized as they
    are read.

    Args:
        format: "nf4" or "int8".
        block_size: Numbers of a column that share a scale in NF4.
        double_quant: Whether the scales of NF4 are kept in eight bits.
        exclude: Globs of the paths of layers that stay wide.
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
        """Returns the array."""
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
        """Returns what frozen weights are kept as, in the place of each."""
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
        """Returns the config with wide weights."""
        return with_full_precision_weights(target)


def _check_no_lengths(stems: list[str], arrays: Any) -> None:
    """Checks that no adapter has lengths of columns, which rounding the base would change."""
    doubled = [stem for stem in stems if f"{stem}lora_magnitude.change" in arrays]
    if doubled:
        raise ConfigError(
            f"adapters with magnitudes are read beside a base that is rounded: {doubled[0]}"
            "lora_magnitude is for the columns of the wide weight",
            where="init_from.adapters",
            hint="read them without quantized_base",
        )
