"""Records of what changes a model, and of the published forms of models."""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from axcore.errors import PluginError
from axcore.registration import (
    Record,
    Ref,
    a_name,
    frozen_mapping,
    frozen_tuple,
    mapping_of,
    module_names,
    of_type,
    record,
)


@attrs.frozen(kw_only=True)
class Replacement(Record):
    """One of the classes that a layer variant replaces.

    Args:
        name: Of the variant.
        config: A Config class, or a function from the config that is replaced to another.
        replaces: The class.
    """

    kind: ClassVar[str] = "layer variant"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    replaces: Ref = attrs.field(validator=of_type(Ref))


@record(hook="layer_variants")
@attrs.frozen(kw_only=True)
class LayerVariant(Record):
    """A layer that can replace another layer, or several that replace several together.

    A feature that spans layers is one variant: hyper-connections are a residual connection of
    several streams and a stack that makes and joins these. Then `replaces` is a mapping from each
    class to what takes its place, as
    `{"axcore.layers:PreNorm": Ref(...), "axcore.layers:ScannedLayers": Ref(...)}`, and there is no
    `config`. All of the classes are replaced, or none.

    Args:
        name: As a user asks for it.
        config: Its Config class, or a function from the config it replaces to its own.
        replaces: The layer class that it replaces, or a mapping from each of several, as
            `"package.module:Class"`, to what `config` would be for it.
        summary: One line.

    Example:
        @hook.layer_variants
        def layer_variants():
            yield LayerVariant(name="acme_norm", config=Ref("axl_acme.norm:AcmeNorm.Config"),
                               replaces=Ref("axcore.layers:RMSNorm"), summary="Norm without mean")
    """

    kind: ClassVar[str] = "layer variant"

    name: str = attrs.field(validator=a_name)
    config: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    replaces: Ref | Mapping[str, Ref] = attrs.field(converter=frozen_mapping)
    summary: str = attrs.field(validator=of_type(str))

    @replaces.validator
    def _pairs_each_class_with_a_config(self, attribute: Any, value: Any) -> None:
        is_one = isinstance(value, Ref)
        if not is_one:
            mapping_of(Ref)(self, attribute, value)
        if not value or is_one != (self.config is not None):
            raise PluginError(
                f"LayerVariant {self.name!r} has config={self.config!r} and replaces={value!r}; "
                "each class that is replaced needs one config",
                hint="for one class give config=Ref(...) and replaces=Ref(...); for several "
                'replaces={"package.module:Class": Ref(...), ...} and no config',
            )
        self.parts()  # refuses keys that are not a target of a Ref

    def parts(self) -> tuple[Replacement, ...]:
        """Return each class that it replaces, with what takes its place."""
        if isinstance(self.replaces, Mapping):
            pairs = {Ref(target): config for target, config in self.replaces.items()}
        else:
            assert self.config is not None
            pairs = {self.replaces: self.config}
        return tuple(
            Replacement(name=self.name, replaces=replaced, config=config).stamped(self.plugin)
            for replaced, config in pairs.items()
        )


@record(hook="modifiers")
@attrs.frozen(kw_only=True)
class Modifier(Record):
    """A change of configs that users ask for by name: `axcore train tiny --modify NAME`.

    No plugin changes a config unasked.

    Args:
        name: As a user asks for it.
        config: A config class whose instances have a pure `apply(cfg, hardware) -> cfg`; users set
            its fields by `--modify 'NAME(field=value)'`.
        summary: One line.

    Example:
        @hook.modifiers
        def modifiers():
            yield Modifier(name="acme_packed", config=Ref("axl_acme.modifiers:Packed"),
                           summary="Weights in Acme's packed layout")
    """

    kind: ClassVar[str] = "modifier"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="rope_scalings")
@attrs.frozen(kw_only=True)
class RopeScaling(Record):
    """A `rope_type` of published `config.json`s, in every family that has rotary positions.

    Args:
        name: The `rope_type`.
        config: The Config class of its position layer, with a field `theta`.
        fields: Fields of that class by those of `rope_scaling`.
        optional: Of these, fields that `rope_scaling` may leave out: both sides then mean the same.
        summary: One line.

    Example:
        @hook.rope_scalings
        def rope_scalings():
            yield RopeScaling(name="acme", config=Ref("axl_acme.rope:AcmeRoPE.Config"),
                              fields={"factor": "factor"}, summary="Acme's scaling")
    """

    kind: ClassVar[str] = "RoPE scaling"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    fields: Mapping[str, str] = attrs.field(converter=frozen_mapping, validator=mapping_of(str))
    optional: Mapping[str, str] = attrs.field(
        factory=dict, converter=frozen_mapping, validator=mapping_of(str)
    )
    summary: str = attrs.field(validator=of_type(str))


@record(hook="hugging_face_families")
@attrs.frozen(kw_only=True)
class HuggingFaceFamily(Record):
    """A family of models that `axcore convert` reads and writes.

    Args:
        name: The `model_type` of its `config.json`.
        family: An `axcore.interop.Family`: its config map and its weight map.
        instead_of: The `model_type`, where a family of another plugin has it as its name. That one
            reads a part of the model; this one reads all of it, where `config.json` names its
            `architecture`. It has a name of its own, which is in no file.
        after: A family that describes the same models: one that was not read from files is written
            as that.
        summary: One line.

    Example:
        @hook.hugging_face_families
        def hugging_face_families():
            yield HuggingFaceFamily(name="acme", family=Ref("axl_acme.hugging_face:ACME"),
                                    summary="Acme's models")
    """

    kind: ClassVar[str] = "Hugging Face family"

    name: str = attrs.field(validator=a_name)
    family: Ref = attrs.field(validator=of_type(Ref))
    instead_of: str = attrs.field(default="", validator=of_type(str))
    after: str = attrs.field(default="", validator=of_type(str))
    summary: str = attrs.field(validator=of_type(str))

    @property
    def model_type(self) -> str:
        """The `model_type` of its `config.json`."""
        return self.instead_of or self.name


@record(hook="adapter_formats")
@attrs.frozen(kw_only=True)
class AdapterFormat(Record):
    """How a layer that corrects its `base` is exported, alone or merged into its base.

    Args:
        name: The format's.
        layer: The Config class of the layer, with a field `base`.
        format: An `axcore.interop.AdapterFormat`, as a class without arguments.
        summary: One line.

    Example:
        @hook.adapter_formats
        def adapter_formats():
            yield AdapterFormat(name="acme", layer=Ref("axl_acme.adapter:AcmeAdapter.Config"),
                                format=Ref("axl_acme.adapter:AcmeFormat"), summary="Acme's")
    """

    kind: ClassVar[str] = "adapter format"

    name: str = attrs.field(validator=a_name)
    layer: Ref = attrs.field(validator=of_type(Ref))
    format: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))


@record(hook="features")
@attrs.frozen(kw_only=True)
class Feature(Record):
    """A feature that any model can get, and whose cost `axcore loc` measures.

    Args:
        name: As a user asks for it: `axcore loc NAME`.
        apply: A function from a training config to one with the feature, such as somebody would
            write for their own models; its lines are what is counted. None where nothing has to
            be written.
        evidence: From a trace, `axcore.complexity.Trace`, to None where the feature is in it, or
            why it is not.
        implementation: The feature's own modules, or names in them as `axl_acme.norm:AcmeNorm`,
            which nothing else may import.
        target: The hardware to trace for.
        variant_of: What it is one of several variants of, such as `rope` or `kv_cache`; `axcore
            loc` measures what all of them cost together. Empty where it is a feature of its own.
        summary: One line.

    Example:
        @hook.features
        def features():
            yield Feature(name="acme_norm", apply=Ref("axl_acme.features:with_acme_norm"),
                          evidence=Ref("axl_acme.features:has_acme_norm"),
                          implementation=("axl_acme.norm",), summary="Acme's norm everywhere")
    """

    kind: ClassVar[str] = "feature"

    name: str = attrs.field(validator=a_name)
    apply: Ref | None = attrs.field(default=None, validator=of_type(Ref, type(None)))
    evidence: Ref = attrs.field(validator=of_type(Ref))
    implementation: tuple[str, ...] = attrs.field(
        default=(), converter=frozen_tuple, validator=module_names
    )
    target: str = attrs.field(default="cpu-1", validator=a_name)
    variant_of: str = attrs.field(default="", validator=of_type(str))
    summary: str = attrs.field(validator=of_type(str))
