"""Changes that users ask for by name: `axcore train tiny --modify sliding_window`.

A name stands for a modifier, a layer variant, a data source or a tokenizer that a plugin, or the
core, brings. Values inside what it puts in are set afterwards, by `--set`.
"""

from collections.abc import Iterable
from typing import Any

from axcore.config import name_the_known, replace_config
from axcore.errors import ConfigError, PluginError
from axcore.plugins.hardware import Hardware
from axcore.plugins.host import plugin_host
from axcore.plugins.records import DataSource, DataTokenizer, LayerVariant, Modifier
from axcore.plugins.ref import Ref
from axcore.plugins.variants import with_variant

Change = Modifier | LayerVariant | DataSource | DataTokenizer

_SLOTS = {DataSource: Ref("axcore.data:Source"), DataTokenizer: Ref("axcore.data:Tokenizer")}


def with_changes(cfg: Any, names: Iterable[str], hardware: Hardware | None = None) -> Any:
    """Returns `cfg` with named changes made, in the order given.

    Args:
        cfg: An experiment's config.
        names: Of modifiers, layer variants, data sources and tokenizers.
        hardware: What modifiers are told to change it for.

    Raises:
        PluginError: Nobody brings a change of that name, or two things go by it.
        ConfigError: There is nothing to change, or a modifier comes without hardware.
    """
    for name in names:
        cfg = _changed(cfg, find_change(name), hardware)
    return cfg


def find_change(name: str) -> Change:
    """Returns the record that a name stands for.

    Raises:
        PluginError: There is none, or more than one.
    """
    host = plugin_host()
    found: dict[str, list[Change]] = {}
    every: tuple[Change, ...] = (
        *host.records(Modifier),
        *host.records(LayerVariant),
        *host.records(DataSource),
        *host.records(DataTokenizer),
    )
    for record in every:
        found.setdefault(record.name, []).append(record)
    if name not in found:
        raise PluginError(
            f"there is no change {name!r}; {name_the_known(name, found)}",
            where="--modify",
            mend="`axcore plugins -v` lists modifiers, layer variants, data sources and tokenizers",
        )
    first, *others = found[name]
    if others:
        shown = " and ".join(f"{one.kind} of {one.plugin}" for one in (first, *others))
        raise PluginError(
            f"{name!r} is the name of {shown}",
            where="--modify",
            mend=f"set AXCORE_BLOCK={others[-1].plugin}",
        )
    return first


def apply_modifier(cfg: Any, modifier: Any, hardware: Hardware, *, where: str) -> Any:
    """Returns `cfg` changed by a modifier.

    Raises:
        ConfigError: It changes nothing, and does not say by `is_idempotent` that it may.
    """
    changed = modifier.apply(cfg, hardware)
    if changed == cfg and not getattr(modifier, "is_idempotent", False):
        raise ConfigError(
            f"{modifier!r} changes nothing",
            where=where,
            mend="take it out, or mend what it looks for",
        )
    return changed


def _changed(cfg: Any, change: Change, hardware: Hardware | None) -> Any:
    if isinstance(change, LayerVariant):
        return with_variant(cfg, change.name)
    made = change.config.resolve()()
    if not isinstance(change, Modifier):
        return replace_config(cfg, _SLOTS[type(change)].resolve(), made)
    if hardware is None:
        raise ConfigError(
            f"modifier {change.name!r} changes configs for some hardware",
            where="--modify",
            mend="add --target NAME",
        )
    return apply_modifier(cfg, made, hardware, where=f"--modify {change.name}")
