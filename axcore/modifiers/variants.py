"""`with_variant`: a config with every layer of one kind replaced by a variant a plugin brings."""

from collections.abc import Callable
from typing import Any, TypeVar

from axcore.config import evolve, is_config, name_the_known, replace_config
from axcore.errors import ConfigError, PluginError
from axcore.plugins.host import plugin_host
from axcore.plugins.records.layer_variant import LayerVariant

C = TypeVar("C")


def with_variant(cfg: C, name: str, /, **values: Any) -> C:
    """Returns `cfg` with the variant in the place of each layer that it replaces.

    Args:
        cfg: Any config tree.
        name: Of the variant, as `axcore plugins -v` lists it.
        **values: Fields of the variant's config.

    Raises:
        PluginError: No plugin brings a variant of that name.
        ConfigError: The tree holds no layer to replace, or the variant has no such field.
    """
    return replace_by_variant(cfg, _find(name), lambda made: evolve(made, **values))


def replace_by_variant(cfg: C, variant: LayerVariant, edit: Callable[[Any], Any]) -> C:
    """Returns `cfg` with a variant, as edited, in the place of each layer that it replaces.

    Raises:
        ConfigError: The tree holds no layer to replace.
    """
    make, replaced = variant.config.resolve(), variant.replaces.resolve()
    if not isinstance(replaced, type):
        raise variant.wrong_field("replaces", replaced, "a class of layers")
    has_any = False

    def replacement(old: Any) -> Any:
        nonlocal has_any
        has_any = True
        arguments = () if isinstance(make, type) else (old,)
        made = variant.call("config", *arguments, returns=object)
        if not is_config(made):
            raise variant.wrong_return("config", made, "a config")
        return edit(made)

    try:
        return replace_config(cfg, replaced, replacement)
    except ConfigError as error:
        if not has_any:
            variant.note(error, "replaces")
        raise


def _find(name: str) -> LayerVariant:
    known = {variant.name: variant for variant in plugin_host().records(LayerVariant)}
    if name in known:
        return known[name]

    raise PluginError(
        f"no plugin brings a layer variant {name!r}; {name_the_known(name, known)}",
        hint="install the plugin that brings it; `axcore plugins -v` lists what there is",
    )
