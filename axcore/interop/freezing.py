"""`FreezeWeights`: weights that a run begins with, kept in few bits as they are read."""

from typing import Any

import attrs

from axcore.config import config
from axcore.errors import ConfigError
from axcore.interop.origins import ArrayChange
from axcore.interop.weight_edits import Models, Offer, WeightEdit
from axcore.layers.quantization import with_full_precision_weights
from axcore.layers.quantization.frozen_linear import CODES, FrozenForm, FrozenFormat

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

    def edited(self, offer: Offer, models: Models) -> Offer:
        """Returns what frozen weights are kept as, in the place of each."""
        form = FrozenForm(self.format, self.block_size, self.double_quant)
        stems = [name.removesuffix(CODES) for name in models.shapes if name.endswith(f".{CODES}")]
        arrays = dict(offer.arrays)
        _check_no_lengths(stems, arrays)
        for stem in stems:
            weight = arrays.pop(f"{stem}{_STEM}", None)
            if weight is None:
                continue  # what has no source is named with all others that have none
            for name, shape in models.shapes.items():
                if name.startswith(f"{stem}{_STEM}_"):
                    part = name.removeprefix(stem)
                    arrays[name] = weight.changed(Frozen(form, part), shape)
        return attrs.evolve(offer, arrays=arrays)

    def undone(self, ours: Any, theirs: Any) -> Any:
        """Returns the config with wide weights."""
        return with_full_precision_weights(ours)


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
