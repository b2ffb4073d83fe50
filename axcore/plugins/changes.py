"""Changes that users ask for by name: `axcore train tiny --modify sliding_window`.

A name stands for a modifier, a layer variant, a quantization scheme, a data source or a tokenizer
that a plugin, or the core, brings. Values of it follow in parentheses:
`--modify 'remat(policy=minimal)'`.
"""

from collections.abc import Iterable
from typing import Any

from axcore.config import (
    REQUIRED,
    apply_overrides,
    field_names,
    is_config,
    name_the_known,
    replace_config,
)
from axcore.errors import ConfigError, PluginError
from axcore.plugins.change_text import parse_change
from axcore.plugins.hardware import Hardware
from axcore.plugins.host import plugin_host
from axcore.plugins.records import DataSource, DataTokenizer, LayerVariant, Modifier
from axcore.plugins.ref import Ref
from axcore.plugins.scheme import QuantizationScheme
from axcore.plugins.variants import replace_by_variant

Change = Modifier | LayerVariant | QuantizationScheme | DataSource | DataTokenizer

_WITH_DOT = Ref("axcore.layers:with_dot")
_SLOTS = {DataSource: Ref("axcore.data:Source"), DataTokenizer: Ref("axcore.data:Tokenizer")}


def with_changes(cfg: Any, changes: Iterable[str], hardware: Hardware | None = None) -> Any:
    """Returns `cfg` with named changes made, in the order given.

    Args:
        cfg: An experiment's config.
        changes: `NAME` or `NAME(field=value, ...)` of modifiers, layer variants, quantization
            schemes, data sources and tokenizers.
        hardware: What modifiers are told to change it for.

    Raises:
        PluginError: Nobody brings a change of that name, or two things go by it.
        ConfigError: A text is no change, a value does not fit, there is nothing to change, or a
            modifier comes without hardware.
    """
    for change in changes:
        cfg = _changed(cfg, change, hardware)
    return cfg


def find_change(change: str) -> Change:
    """Returns the record that the name in front of a change stands for.

    Raises:
        PluginError: There is none, or more than one.
        ConfigError: The text is no change.
    """
    name, _ = parse_change(change)
    host = plugin_host()
    found: dict[str, list[Change]] = {}
    every: tuple[Change, ...] = (
        *host.records(Modifier),
        *host.records(LayerVariant),
        *host.records(QuantizationScheme),
        *host.records(DataSource),
        *host.records(DataTokenizer),
    )
    for record in every:
        found.setdefault(record.name, []).append(record)
    if name not in found:
        raise PluginError(
            f"there is no change {name!r}; {name_the_known(name, found)}",
            where="--modify",
            mend="`axcore plugins -v` lists modifiers, layer variants, quantization schemes, data "
            "sources and tokenizers",
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
        ConfigError: It is no modifier, lacks a value, or changes nothing and does not say by
            `is_idempotent` that it may.
    """
    if not callable(getattr(modifier, "apply", None)):
        raise ConfigError(
            f"{modifier!r} is no modifier: it has no apply(cfg, hardware)",
            where=where,
            mend="give a config of axcore.modifiers, or one of a plugin's",
        )
    missing = [name for name in _fields(modifier) if getattr(modifier, name) is REQUIRED]
    if missing:
        raise ConfigError(
            f"{type(modifier).__qualname__} lacks {', '.join(missing)}",
            where=where,
            mend=f"{type(modifier).__qualname__}({missing[0]}=...)",
        )
    changed = modifier.apply(cfg, hardware)
    if changed == cfg and not getattr(modifier, "is_idempotent", False):
        raise ConfigError(
            f"{modifier!r} changes nothing",
            where=where,
            mend="take it out, or mend what it looks for",
        )
    return changed


def _fields(modifier: Any) -> tuple[str, ...]:
    return field_names(modifier) if is_config(modifier) else ()


def _changed(cfg: Any, text: str, hardware: Hardware | None) -> Any:
    change, (_, values) = find_change(text), parse_change(text)
    where = f"--modify {text}"

    def with_values(made: Any) -> Any:
        return apply_overrides(made, values, set_in=where)

    if isinstance(change, LayerVariant):
        return replace_by_variant(cfg, change, with_values)
    made = with_values(change.config.resolve()())
    if isinstance(change, QuantizationScheme):
        return _WITH_DOT.resolve()(cfg, made)
    if not isinstance(change, Modifier):
        return replace_config(cfg, _SLOTS[type(change)].resolve(), made)
    if hardware is None:
        raise ConfigError(
            f"modifier {change.name!r} changes configs for some hardware",
            where="--modify",
            mend="add --target NAME",
        )
    return apply_modifier(cfg, made, hardware, where=where)
