"""`LayerVariant`: the record of a layer variant."""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from axcore.errors import PluginError
from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, frozen_mapping, mapping_of, of_type


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
        self.parts()  # refuses keys that are no target of a Ref

    def parts(self) -> tuple[Replacement, ...]:
        """Returns each class that it replaces, with what takes its place."""
        if isinstance(self.replaces, Mapping):
            pairs = {Ref(target): config for target, config in self.replaces.items()}
        else:
            assert self.config is not None
            pairs = {self.replaces: self.config}
        return tuple(
            Replacement(name=self.name, replaces=replaced, config=config).stamped(self.plugin)
            for replaced, config in pairs.items()
        )
