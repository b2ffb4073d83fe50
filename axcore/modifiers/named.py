"""Changes that users ask for by name: `axcore train tiny --modify sliding_window`.

A name means a modifier, a layer variant, a quantization scheme, a data source, a tokenizer, a
transform of documents or a training task that a plugin, or the core, brings. Values of it follow in
parentheses: `--modify 'remat(policy=minimal)'`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from axcore.config import (
    REQUIRED,
    apply_overrides,
    evolve,
    field_names,
    is_config,
    replace_config,
    suggest_names,
)
from axcore.data import FileSource, Source, Tokenizer, Transform
from axcore.errors import ConfigError, PluginError
from axcore.hardware.hardware import Hardware
from axcore.layers import Dot
from axcore.modifiers.quantization import with_dot
from axcore.modifiers.variants import replace_by_variant
from axcore.module import Module
from axcore.plugins.host import attributed, of_plugin, plugin_host, wrong_method_return
from axcore.plugins.records import (
    DataSource,
    DataTokenizer,
    DataTransform,
    LayerVariant,
    Modifier,
    QuantizationScheme,
    TrainingTask,
)
from axcore.registration import Record

Change = (
    Modifier
    | LayerVariant
    | QuantizationScheme
    | DataSource
    | DataTokenizer
    | DataTransform
    | TrainingTask
)

_SLOTS = {DataSource: Source, DataTokenizer: Tokenizer}
_CONFIGS: Mapping[type[Record], type] = {
    DataSource: Source.Config,
    DataTokenizer: Tokenizer.Config,
    DataTransform: Transform.Config,
    QuantizationScheme: Dot.Config,
    TrainingTask: Module.Config,
    Modifier: object,
}


def with_changes(cfg: Any, changes: Iterable[str], hardware: Hardware | None = None) -> Any:
    """Return `cfg` with named changes made, in the order given.

    Args:
        cfg: An experiment's config.
        changes: `NAME` or `NAME(field=value, ...)` of modifiers, layer variants, quantization
            schemes, data sources, tokenizers, transforms and training tasks.
        hardware: What modifiers change it for.

    Raises:
        PluginError: Nobody brings a change of that name, two things go by it, or what brings it is
            not of its kind.
        ConfigError: A text is not a change, a value does not fit, there is nothing to change, or a
            modifier comes without hardware.
    """
    for change in changes:
        cfg = _changed(cfg, change, hardware, where=f"--modify {change}")
    return cfg


def find_change(change: str) -> Change:
    """Return the record that the name in front of a change means.

    Raises:
        PluginError: There is none, or more than one.
        ConfigError: The text is not a change.
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
        *host.records(DataTransform),
        *host.records(TrainingTask),
    )
    for record in every:
        found.setdefault(record.name, []).append(record)
    if name not in found:
        raise PluginError(
            f"there is no change {name!r}; {suggest_names(name, found)}",
            where="--modify",
            hint="`axcore plugins -v` lists modifiers, layer variants, quantization schemes, data "
            "sources, tokenizers, transforms and training tasks",
        )
    first, *others = found[name]
    if others:
        shown = " and ".join(f"{one.kind} of {one.plugin}" for one in (first, *others))
        raise PluginError(
            f"{name!r} is the name of {shown}",
            where="--modify",
            hint=f"set AXCORE_BLOCK={others[-1].plugin}",
        )
    return first


def apply_modifier(cfg: Any, modifier: Any, hardware: Hardware, *, where: str) -> Any:
    """Return `cfg` changed by a modifier, or by a named change, which is a str.

    Raises:
        ConfigError: It is not a modifier, lacks a value, or changes nothing and does not say by
            `is_idempotent` that it may.
    """
    if isinstance(modifier, str):
        return _changed(cfg, modifier, hardware, where=where)
    if not callable(getattr(modifier, "apply", None)):
        raise ConfigError(
            f"{modifier!r}{of_plugin(modifier)} is not a modifier: it has no apply(cfg, hardware)",
            where=where,
            hint="give a config of axcore.modifiers, or one of a plugin's",
        )
    missing = [name for name in _fields(modifier) if getattr(modifier, name) is REQUIRED]
    if missing:
        raise ConfigError(
            f"{type(modifier).__qualname__} lacks {', '.join(missing)}",
            where=where,
            hint=f"{type(modifier).__qualname__}({missing[0]}=...)",
        )
    with attributed(modifier, "apply"):
        changed = modifier.apply(cfg, hardware)
    # A node of it, as `cfg.model`, would lose the rest of the experiment.
    is_like = isinstance(changed, type(cfg)) or isinstance(cfg, type(changed))
    if not is_like or not is_config(changed):
        expected = f"the changed {type(cfg).__qualname__}"
        raise wrong_method_return(modifier, "apply", changed, expected)
    if changed == cfg and not getattr(modifier, "is_idempotent", False):
        raise ConfigError(
            f"{modifier!r}{of_plugin(modifier)} changes nothing",
            where=where,
            hint="remove it, or check the path or the class that it looks for",
        )
    return changed


def _fields(modifier: Any) -> tuple[str, ...]:
    return field_names(modifier) if is_config(modifier) else ()


def _changed(cfg: Any, text: str, hardware: Hardware | None, *, where: str) -> Any:
    change, (_, values) = find_change(text), parse_change(text)

    def with_values(made: Any, values: Iterable[str] = values) -> Any:
        return apply_overrides(made, values, set_in=where)

    # Of a variant the configs are made only where it replaces something, so values wait until then.
    if isinstance(change, LayerVariant):
        by_field = {value.partition("=")[0]: value for value in values}
        return replace_by_variant(
            cfg, change, by_field, lambda made, mine: with_values(made, mine.values())
        )
    made = change.call("config", returns=_CONFIGS[type(change)])
    if not is_config(made):
        raise change.wrong_return("config", made, "a config")
    made = with_values(made)
    if isinstance(change, QuantizationScheme):
        return with_dot(cfg, made)
    if isinstance(change, DataTransform):
        return replace_config(
            cfg, FileSource, lambda one: evolve(one, transforms=(*one.transforms, made))
        )
    if isinstance(change, TrainingTask):
        return evolve(cfg, task=made)
    if not isinstance(change, Modifier):
        return replace_config(cfg, _SLOTS[type(change)], made)
    if hardware is None:
        raise ConfigError(
            f"modifier {change.name!r} changes configs for some hardware",
            where="--modify",
            hint="add --target NAME",
        )
    return apply_modifier(cfg, made, hardware, where=where)


_CHANGE = re.compile(r"\s*([^\s()=,]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_FIELD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_OPENING = {"(": ")", "[": "]", "{": "}"}


def parse_change(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a change's name, and the `field=value` texts in it.

    >>> parse_change("mesh_shape(mesh={'data': 2, 'fsdp': -1})")
    ('mesh_shape', ("mesh={'data': 2, 'fsdp': -1}",))

    Raises:
        ConfigError: The text is not a change.
    """
    match = _CHANGE.fullmatch(text)
    if match is None:
        raise _not_a_change(text, "it has no name, or its parentheses do not close")
    name, inside = match.groups()
    if inside is None or not inside.strip():
        return name, ()
    values = []
    for part in split_at_commas(inside):
        field = _FIELD.fullmatch(part)
        if field is None:
            raise _not_a_change(text, f"{part.strip()!r} is not field=value")
        values.append(f"{field[1]}={field[2].strip()}")
    return name, tuple(values)


def split_at_commas(text: str) -> list[str]:
    """Return the parts of a text between the commas outside of brackets and quotes.

    Raises:
        ConfigError: A bracket or a quote is not closed.
    """
    parts, closing, quote, start = [], "", "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in _OPENING:
            closing += _OPENING[sign]
        elif closing and sign == closing[-1]:
            closing = closing[:-1]
        elif sign in _OPENING.values():
            raise _not_a_change(text, f"{sign!r} closes nothing")
        elif sign == "," and not closing:
            parts.append(text[start:at])
            start = at + 1
    if quote or closing:
        raise _not_a_change(text, f"{quote or closing[-1]} is missing")
    return [*parts, text[start:]]


def _not_a_change(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is not a change: {reason}",
        where="--modify",
        hint="write a name, or name(field=value, ...) in quotes: --modify 'remat(policy=minimal)'",
    )
