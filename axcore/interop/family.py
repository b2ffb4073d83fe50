"""`Family`: what a family of published models is called, and how it maps to ours; both ways."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from immutabledict import immutabledict

from axcore.config import diff_config, format_diff, name_the_known
from axcore.errors import AxcoreError, ConfigError
from axcore.interop.canonical import canonical, uncorrected
from axcore.interop.config_map import IRRELEVANT, ConfigEntry, Fields
from axcore.interop.gguf_map import GGUFMap
from axcore.interop.layer_kinds import NUM_LAYERS, LayerKinds
from axcore.interop.weight_map import BoundMap, WeightMap, listed
from axcore.plugins import HuggingFaceFamily, plugin_host

TRAINING_ONLY = (r"\.dot\.",)
"""Arrays of ours that published models lack: what quantized training has measured."""

CORRECTIONS = (r"\.lora_(down|up|magnitude)\.",)
"""Arrays of ours that correct a published model, and at first do not."""


@attrs.frozen(kw_only=True)
class Family:
    """A family of published models.

    Args:
        architecture: The class that transformers loads it with.
        template: Returns a config of the family, of any size, that the config map then completes.
        config: The config map, in the order in which entries are read.
        weights: From a config to the weight map of its model.
        layers: Which layers are of which kind, where there are several.
        irrelevant: Fields of `config.json` that change no number, besides those of all families.
        skipped: Regular expressions of tensors that are passed over, unless the model has them.
        copies: Tensors that some files have once more, by name, and the ones they repeat.
        prefix: What names of the map begin with, where some files leave that out in all names.
        length: The field with the tokens of a row, at most.
        nested: The field that holds all of these fields, in models of more than text.
        defaults: Values of fields that such models leave out.
        renamed: Regular expressions of parts of names in files, and what is in their place here.
        gguf: How llama.cpp's files have such models, if it has them.
    """

    architecture: str
    template: Callable[[], Any]
    config: tuple[ConfigEntry, ...]
    weights: Callable[[Any], WeightMap]
    layers: LayerKinds | None = None
    irrelevant: frozenset[str] = frozenset()
    skipped: tuple[str, ...] = (r"rotary_emb\.inv_freq$",)
    copies: Mapping[str, str] = immutabledict({"lm_head.weight": "model.embed_tokens.weight"})
    prefix: str = ""
    length: str = "max_position_embeddings"
    nested: str = ""
    defaults: Mapping[str, Any] = immutabledict()
    renamed: tuple[tuple[str, str], ...] = ()
    gguf: GGUFMap | None = None

    def read(self, values: Mapping[str, Any]) -> Any:
        """Returns our config of the model that a `config.json` describes.

        Raises:
            ConfigError: A field is missing, or says what our model cannot do, or is not known.
        """
        values = {**self.defaults, **values, **values.get(self.nested, {})}
        values.pop(self.nested, None)
        fields, cfg = Fields(values), self.template()
        if self.layers is not None:
            cfg, _ = self.layers.fold(cfg)
        for entry in self.config:
            cfg = entry.read(cfg, fields)
        if self.layers is not None:
            cfg = self.layers.unfold(cfg, fields)
        unknown = sorted(fields.unread().keys() - self.irrelevant - IRRELEVANT)
        if unknown:
            shown = listed(f"{name}={values[name]!r}" for name in unknown)
            raise ConfigError(
                f"config.json has {len(unknown)} fields that this family's map does not know, so "
                f"that numbers might differ:\n{shown}",
                hint="take out those that are known to change nothing",
            )
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Returns the fields of the `config.json` that describes a model of ours.

        Raises:
            ConfigError: The model is not of this family: read again, the fields make another one.
        """
        if self.nested:
            raise ConfigError(f"it holds more than what {self.nested} describes")
        cfg = canonical(cfg)
        values: dict[str, Any] = {}
        described = cfg
        if self.layers is not None:
            described, kinds = self.layers.fold(cfg)
            values = {NUM_LAYERS: len(kinds), **self.layers.write(kinds)}
        for entry in self.config:
            values |= entry.write(described)
        changes = diff_config(self.normal(self.read(values)), self.normal(cfg))
        if changes:
            raise ConfigError(f"the model differs (+) from the family's:\n{format_diff(changes)}")
        return values

    def normal(self, cfg: Any) -> Any:
        """Returns a config of the family in the one form that all have which make equal numbers."""
        cfg = canonical(cfg)
        for entry in self.config:
            cfg = entry.normal(cfg)
        return cfg

    def bind(self, cfg: Any, *, ignored: tuple[str, ...] = TRAINING_ONLY) -> BoundMap:
        """Returns the weight map of a model, applied to its state.

        Args:
            cfg: The model's config.
            ignored: Regular expressions of arrays of ours that published models lack.
        """
        plain = canonical(uncorrected(cfg))
        return BoundMap(self.weights(plain), cfg.build().param_specs(), ignored=ignored)


def family_named(name: str) -> Family:
    """Returns the family of a `model_type`.

    Raises:
        ConfigError: No plugin that is installed brings it.
    """
    known = {record.name: record for record in plugin_host().records(HuggingFaceFamily)}
    if name not in known:
        raise ConfigError(
            f"nothing installed has models of type {name!r}",
            where="model_type",
            hint=name_the_known(name, known),
        )
    family: Family = known[name].family.resolve()
    if not isinstance(family, Family):
        raise known[name].wrong_field("family", family, "an axcore.interop.Family")
    return family


def family_of(cfg: Any) -> tuple[str, Family, dict[str, Any]]:
    """Returns the family that a model of ours is of: its name, itself, and the model's fields.

    That is read off the config, which needs no record of where it came from. A model that several
    families can describe, as Llama's and Mistral's without a window are one, is the first of them
    by name; the core's go first.

    Raises:
        ConfigError: It is of none.
    """
    reasons = []
    records = plugin_host().records(HuggingFaceFamily)
    for record in sorted(records, key=lambda one: (one.plugin != "core", one.name)):
        family = family_named(record.name)
        try:
            return record.name, family, family.write(cfg)
        except AxcoreError as error:
            reasons.append(f"{record.name}: {error.what}".rstrip())
    raise ConfigError(
        "no family of published models has such a model\n" + "\n".join(reasons),
        where="model",
        hint="export works for models that transformers has; take out what was added",
    )
