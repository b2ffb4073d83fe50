"""`ModelPart`: a part of a pretrained checkpoint that is a model of another family.

A model of pictures and text has a language model in it. Whichever family that is of, its own maps
read it: fields of `config.json` by one entry, weights by `part_weights`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from immutabledict import immutabledict

from axcore.interop.config_map import IRRELEVANT, ConfigEntry, Fields
from axcore.interop.family import family_named, family_of
from axcore.interop.weight_map import WeightMap

_TYPE = "model_type"


@attrs.frozen(kw_only=True)
class ModelPart(ConfigEntry):
    """The fields of a part, which a family of its own reads.

    Args:
        name: Of the part, in the outer family's `parts`.
        get: Returns the part of a config.
        put: Returns a config with another part.
        family: What the absence of a `model_type` means.
        defaults: What the absence of fields means, by the `model_type`: files leave out the
            defaults of transformers.
        types: What the `model_type` is called inside of the other, by its own name, where the two
            differ.
    """

    name: str
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], Any]
    family: str
    defaults: Mapping[str, Mapping[str, Any]] = immutabledict()
    types: Mapping[str, str] = immutabledict()

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the part.

        Raises:
            ConfigError: No family reads it.
        """
        before = f"{self.name}."
        own = {
            name.removeprefix(before): value
            for name, value in fields.values.items()
            if name.startswith(before)
        }
        back = {inside: kind for kind, inside in self.types.items()}
        kind = own.get(_TYPE, self.family)
        kind = back.get(kind, kind)
        # Fields that change no number stay unread, so that exports have them again.
        fields.read |= {before + name for name in own if name not in IRRELEVANT or name == _TYPE}
        return self.put(cfg, family_named(kind).read({**self.defaults.get(kind, {}), **own}))

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ConfigError: The part is of no family.
        """
        kind, _, values = family_of(self.get(cfg))
        named = {_TYPE: self.types.get(kind, kind), **values}
        return {f"{self.name}.{name}": one for name, one in named.items()}

    def normal(self, cfg: Any) -> Any:
        """Return a config whose part is in the form in which its family reads it."""
        part = self.get(cfg)
        _, family, _ = family_of(part)
        return self.put(cfg, family.normal(part))


def part_weights(part: Any, hf: str, *, moved: Mapping[str, str] = immutabledict()) -> WeightMap:
    """Return the weight map of a part.

    Args:
        part: Its config.
        hf: What names of its tensors begin with.
        moved: What paths of arrays begin with in the model, by what they begin with in the part.

    Raises:
        ConfigError: The part is of no family.
    """

    def placed(path: str) -> str:
        for own, new in moved.items():
            if path.startswith(own):
                return new + path.removeprefix(own)
        return path

    _, family, _ = family_of(part)
    return tuple(
        attrs.evolve(
            rule,
            axcore=tuple(map(placed, rule.axcore)),
            hf=tuple(hf + name for name in rule.hf),
        )
        for rule in family.weights(part)
    )
