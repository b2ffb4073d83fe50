"""`with_variant`: a config with layers replaced by those of a variant that a plugin brings."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from axcore.config import (
    class_tag,
    evolve,
    field_names,
    find_config,
    is_config,
    replace_config,
    suggest_names,
)
from axcore.errors import ConfigError, PluginError
from axcore.plugins.host import plugin_host
from axcore.plugins.records.models import LayerVariant, Replacement

C = TypeVar("C")


def with_variant(cfg: C, name: str, /, **values: Any) -> C:
    """Return `cfg` with the variant instead of each layer that it replaces.

    Args:
        cfg: Any config tree.
        name: Of the variant, as `axcore plugins -v` lists it.
        **values: Fields of the variant's config. Where it replaces several classes, a value is for
            all of its configs that have the field.

    Raises:
        PluginError: No plugin brings a variant of that name.
        ConfigError: The tree lacks a layer to replace, or the variant has no such field.
    """
    return replace_by_variant(cfg, _find(name), values, lambda made, mine: evolve(made, **mine))


def replace_by_variant(
    cfg: C,
    variant: LayerVariant,
    values: Mapping[str, Any],
    edit: Callable[[Any, Mapping[str, Any]], Any],
) -> C:
    """Return `cfg` with a variant instead of each layer that it replaces.

    All classes are replaced in one walk, children first: what takes the place of one class is
    given what took the place of another below it, and never has a part of itself replaced.

    Args:
        cfg: Any config tree.
        variant: Of one class or several.
        values: By field of the variant's configs.
        edit: From a config and those of the values whose fields it has to the config with them.

    Raises:
        ConfigError: The tree lacks a class that is replaced, or the variant has no such field.
    """
    parts = [(_replaced_config(part), part) for part in variant.parts()]
    for cls, part in parts:
        if not find_config(cfg, cls):
            raise _nothing_to_replace(cfg, variant, part)
    known: set[str] = set()

    def is_replaced(node: Any) -> bool:
        return any(isinstance(node, cls) for cls, _ in parts)

    def replacement(old: Any) -> Any:
        made = _made_for(old, [part for cls, part in parts if isinstance(old, cls)])
        names = field_names(made)
        known.update(names)
        return edit(made, {name: value for name, value in values.items() if name in names})

    # In one walk: with one for each class, what replaces the first could be replaced by the second.
    changed = replace_config(cfg, is_replaced, replacement)
    for name in values:
        if name not in known:
            raise ConfigError(
                f"layer variant {variant.name!r} has no field {name!r}",
                where=f"{variant.name}({name}=...)",
                hint=suggest_names(name, known),
            )
    return changed


def _replaced_config(part: Replacement) -> type:
    cls = part.replaces.resolve()
    if not isinstance(cls, type):
        raise part.wrong_field("replaces", cls, "a class of layers")
    owned: type = getattr(cls, "Config", cls)
    return owned


def _made_for(old: Any, parts: list[Replacement]) -> Any:
    """Return the config that the one part which replaces `old` makes of it."""
    part, *others = parts
    if others:
        targets = " and ".join(one.replaces.target for one in parts)
        raise PluginError(
            f"layer variant {part.name!r} replaces {targets}, and {class_tag(type(old))} is both",
            where=f"plugin {part.plugin!r}",
            hint="replace classes of which none is derived from another",
        )
    arguments = () if isinstance(part.config.resolve(), type) else (old,)
    made = part.call("config", *arguments, returns=object)
    if not is_config(made):
        raise part.wrong_return("config", made, "a config")
    return made


def _nothing_to_replace(cfg: Any, variant: LayerVariant, missing: Replacement) -> ConfigError:
    every = [_class_name(part) for part in variant.parts()]
    replaced = f"{' and '.join(every)} together" if len(every) > 1 else every[0]
    # By the text of their Refs, as other plugins' modules need not be importable for this one's.
    rivals = [
        other.name
        for other in plugin_host().records(LayerVariant)
        if any(part.replaces == missing.replaces for part in other.parts())
    ]
    name = _class_name(missing)
    return ConfigError(
        f"layer variant {variant.name!r} of plugin {variant.plugin!r} replaces {replaced}, and "
        f"there is no {name} in {type(cfg).__qualname__}; nothing was replaced",
        where="the root",
        hint=f"give it a config that contains a {name}; where a change before it took its place "
        f"({', '.join(rivals)}), leave one of the two out",
    )


def _class_name(part: Replacement) -> str:
    return part.replaces.target.partition(":")[2]


def _find(name: str) -> LayerVariant:
    known = {variant.name: variant for variant in plugin_host().records(LayerVariant)}
    if name in known:
        return known[name]

    raise PluginError(
        f"no plugin brings a layer variant {name!r}; {suggest_names(name, known)}",
        hint="install the plugin that brings it; `axcore plugins -v` lists what there is",
    )
