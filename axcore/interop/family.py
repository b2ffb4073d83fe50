"""`Family`: what a family of published models is called, and how it maps to ours; both ways."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from immutabledict import immutabledict

from axcore.config import diff_config, format_diff, suggest_names
from axcore.errors import AxcoreError, ConfigError
from axcore.interop.canonical import canonical, uncorrected
from axcore.interop.config_map import ConfigEntry, Fields
from axcore.interop.gguf_map import GGUFMap
from axcore.interop.harmless_fields import IRRELEVANT, sorted_out
from axcore.interop.layer_kinds import NUM_LAYERS, LayerKinds
from axcore.interop.published_as import PublishedAs
from axcore.interop.weight_map import BoundMap, WeightMap, listed
from axcore.plugins import HuggingFaceFamily, plugin_host

TRAINING_ONLY = (r"\.dot\.",)
"""Arrays of ours that published models lack: what quantized training has measured."""

CORRECTIONS = (r"\.lora_(down|up|magnitude)\.",)
"""Arrays of ours that correct a published model, and at first do not."""

_NOT_KEPT = frozenset(
    {
        "architectures",
        "auto_map",
        "dtype",
        "model_type",
        "quantization_config",
        "torch_dtype",
        "transformers_version",
    }
)
"""Fields that change no number, and that say what an export is otherwise than the model read."""


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
        unread: Fields that some files have, and no modelling code of the family reads, so that they
            are passed over with a warning, besides those of all families.
        skipped: Regular expressions of tensors that are passed over, unless the model has them.
        mtp_counts: Fields with the number of layers behind the last for multi-token prediction,
            which the models here do not have.
        mtp_tensors: Regular expressions of tensors of such layers, where they have names of their
            own.
        copies: Tensors that some files have once more, by name, and the ones they repeat.
        prefix: What names of the map begin with, where some files leave that out in all names.
        length: The field with the tokens of a row, at most.
        nested: The field that holds all of these fields, in models of more than text.
        written_as: The `model_type` of the family that its models are written as, if it is another.
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
    unread: frozenset[str] = frozenset()
    skipped: tuple[str, ...] = (r"rotary_emb\.inv_freq$",)
    mtp_counts: tuple[str, ...] = ()
    mtp_tensors: tuple[str, ...] = ()
    copies: Mapping[str, str] = immutabledict({"lm_head.weight": "model.embed_tokens.weight"})
    prefix: str = ""
    length: str = "max_position_embeddings"
    nested: str = ""
    written_as: str = ""
    defaults: Mapping[str, Any] = immutabledict()
    renamed: tuple[tuple[str, str], ...] = ()
    gguf: GGUFMap | None = None

    def read(self, values: Mapping[str, Any], *, allow_unknown_fields: bool = False) -> Any:
        """Returns our config of the model that a `config.json` describes.

        Fields that are passed over, because they change no number or because that is allowed, are
        named by a warning, but for those that are in every file.

        Args:
            values: What the file says.
            allow_unknown_fields: Whether fields that could matter are passed over.

        Raises:
            ConfigError: A field is missing, or says what our model cannot do, or is not known.
        """
        cfg, _ = self.read_all(values, allow_unknown_fields=allow_unknown_fields)
        return cfg

    def read_all(
        self, values: Mapping[str, Any], *, allow_unknown_fields: bool = False
    ) -> tuple[Any, PublishedAs]:
        """Returns that config, and what else exports of the model are to say.

        Args:
            values: As `read`.
            allow_unknown_fields: As `read`.

        Raises:
            ConfigError: As `read`.
        """
        flat = self.flat(values)
        fields, cfg = Fields(flat), self.template()
        if self.layers is not None:
            cfg, _ = self.layers.fold(cfg)
        for entry in self.config:
            cfg = entry.read(cfg, fields)
        if self.layers is not None:
            cfg = self.layers.unfold(cfg, fields)
        left = fields.unread()
        unknown = self._check_unread(left, allow_unknown_fields=allow_unknown_fields)
        kept = {n: v for n, v in left.items() if n not in _NOT_KEPT and not n.startswith("_")}
        if self.nested:  # others are of a model that is more than text
            kept = {name: value for name, value in kept.items() if name in IRRELEVANT}
        kept.pop(self.length, None)
        published = PublishedAs(
            family=self.written_as or str(values.get("model_type", "")),
            max_length=flat.get(self.length),
            fields=kept,
            unknown_fields=unknown,
        )
        return cfg, published

    def flat(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a `config.json`, those that are nested beside the others."""
        found = {**self.defaults, **values, **values.get(self.nested, {})}
        found.pop(self.nested, None)
        return found

    def mtp_layers(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns regular expressions of the tensors that are for multi-token prediction alone.

        Args:
            values: What `config.json` says; layers are numbered on behind the last of the model.
        """
        flat = self.flat(values)
        counts = [flat.get(name) or 0 for name in self.mtp_counts]
        first, count = flat.get(NUM_LAYERS, 0), max(counts, default=0)
        numbered = (rf"^model\.layers\.{first + i}\." for i in range(count))
        return (*self.mtp_tensors, *numbered)

    def _check_unread(
        self, left: Mapping[str, Any], *, allow_unknown_fields: bool
    ) -> tuple[str, ...]:
        """Names the fields that no entry of the map has read; returns those that could matter.

        Raises:
            ConfigError: There are some of these, and that is not allowed.
        """
        known = self.irrelevant | IRRELEVANT
        left = {name: value for name, value in left.items() if name not in known}
        harmless, unknown = sorted_out(left, self.unread)
        if unknown and not allow_unknown_fields:
            shown = listed(f"{name}={left[name]!r}" for name in unknown)
            raise ConfigError(
                f"config.json has {len(unknown)} fields that this family's map does not know, so "
                f"that numbers might differ:\n{shown}",
                where=", ".join(unknown),
                hint="if they change no number, ignore them: --allow-unknown-fields, in Python "
                "allow_unknown_fields=True",
            )
        for what, names in (
            ("that no code of its family reads, or that are switched off", harmless),
            ("that are not known, so that numbers might differ", unknown),
        ):
            if names:
                shown = ", ".join(f"{name}={left[name]!r}" for name in names)
                text = f"config.json has fields {what}; they are ignored: {shown}"
                warnings.warn(text, stacklevel=2)
        return tuple(unknown)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Returns the fields of the `config.json` that describes a model of ours.

        Raises:
            ConfigError: The model is not of this family: read again, the fields make another one.
        """
        if self.written_as:
            raise ConfigError(f"its models are written as {self.written_as}")
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

    def bind(
        self, cfg: Any, *, ignored: tuple[str, ...] = TRAINING_ONLY, specs: Any = None
    ) -> BoundMap:
        """Returns the weight map of a model, applied to its state.

        Args:
            cfg: The model's config.
            ignored: Regular expressions of arrays of ours that published models lack.
            specs: Its `param_specs()`, where they are made already.
        """
        plain = canonical(uncorrected(cfg))
        specs = cfg.build().param_specs() if specs is None else specs
        return BoundMap(self.weights(plain), specs, ignored=ignored)


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
            hint=suggest_names(name, known),
        )
    family: Family = known[name].family.resolve()
    if not isinstance(family, Family):
        raise known[name].wrong_field("family", family, "an axcore.interop.Family")
    return family


def family_of(cfg: Any) -> tuple[str, Family, dict[str, Any]]:
    """Returns the family that a model of ours is of: its name, itself, and the model's fields.

    That is read off the config. A model that several families can describe, as Llama's and
    Mistral's without a window are one, is of the family that it was read as; where it began here,
    of the first of them by name, and the core's go first.

    Raises:
        ConfigError: It is of none.
    """
    reasons = []
    read_as = getattr(getattr(cfg, "published", None), "family", "")
    records = plugin_host().records(HuggingFaceFamily)
    order = sorted(records, key=lambda one: (one.name != read_as, one.plugin != "core", one.name))
    for record in order:
        family = family_named(record.name)
        try:
            values = family.write(cfg)
        except AxcoreError as error:
            reasons.append(f"{record.name}: {error.what}".rstrip())
            continue
        if read_as not in ("", record.name):
            warnings.warn(
                f"the model was read as {read_as}, which it is no more; it is written as "
                f"{record.name}: {reasons[0]}",
                stacklevel=2,
            )
        return record.name, family, values
    raise ConfigError(
        "no family of published models has such a model\n" + "\n".join(reasons),
        where="model",
        hint="export works for models that transformers has; take out what was added",
    )
