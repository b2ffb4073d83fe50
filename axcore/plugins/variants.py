"""`with_variant`: a config with every layer of one kind replaced by a variant a plugin brings."""

from collections.abc import Callable
from typing import Any, TypeVar

from axcore.config import evolve, name_the_known, replace_config
from axcore.errors import PluginError
from axcore.plugins.host import plugin_host
from axcore.plugins.records import LayerVariant

C = TypeVar("C")


def with_variant(cfg: C, name: str, /, **values: Any) -> C:
    """Returns `cfg` with the variant wherever the layer it stands in for is.

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
    """Returns `cfg` with a variant, as edited, wherever the layer it stands in for is.

    Raises:
        ConfigError: The tree holds no layer to replace.
    """
    make = variant.config.resolve()

    def replacement(old: Any) -> Any:
        return edit(make() if isinstance(make, type) else make(old))

    return replace_config(cfg, variant.replaces.resolve(), replacement)


def _find(name: str) -> LayerVariant:
    known = {variant.name: variant for variant in plugin_host().records(LayerVariant)}
    if name in known:
        return known[name]

    raise PluginError(
        f"no plugin brings a layer variant {name!r}; {name_the_known(name, known)}",
        mend="install the plugin that brings it; `axcore plugins -v` lists what there is",
    )
