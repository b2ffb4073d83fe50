"""Overrides as a user types them: `path=value`, the value read by the type of the field."""

import ast
import contextlib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union, get_args, get_origin

from axcore.config.define import field_annotations
from axcore.config.edit import matching_paths, set_at_each
from axcore.config.paths import Path, Step, format_path, parse_pattern
from axcore.config.provenance import Origin
from axcore.config.traverse import children
from axcore.config.values import Mismatch, checker, is_config, type_name
from axcore.errors import ConfigError


def apply_overrides(cfg: Any, overrides: Iterable[str], *, set_in: str = "--set") -> Any:
    """Returns `cfg` with `path=value` texts applied in order.

    Raises:
        ConfigError: Listing every text that is no `path=value`, names no path, or whose value does
            not fit the field.
    """
    problems: list[str] = []
    for text in overrides:
        try:
            cfg = _apply(cfg, text, set_in)
        except ConfigError as error:
            problems.append(str(ConfigError(error.what, where=error.where, mend=error.mend)))
    if problems:
        raise ConfigError("\n".join(problems), set_in=set_in)
    return cfg


def _apply(cfg: Any, text: str, set_in: str) -> Any:
    path_text, equals, value_text = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} is no override", mend=f"--set {text}=VALUE")
    values = {
        path: parse_value(value_text, _annotation_at(cfg, path), where=format_path(path))
        for path in matching_paths(cfg, parse_pattern(path_text.strip()))
    }
    return set_at_each(cfg, values, Origin(f"{set_in} {text}"))


def parse_value(text: str, annotation: Any, *, where: str = "") -> Any:
    """Returns the value that a text stands for in a field of that type.

    Raises:
        ConfigError: No reading of the text fits.
    """
    check = checker(annotation)
    for reading in _readings(text):
        try:
            return check(reading)
        except Mismatch:
            continue
    mend = f"--set {where}={_example(annotation)}"
    if any(_is_config_option(option) for option in _options(annotation)):
        mend = (
            f"set the fields inside of it, --set {where}.FIELD=VALUE; replace_config swaps it whole"
        )
    raise ConfigError(f"{text!r} is no {type_name(annotation)}", where=where, mend=mend)


def _readings(text: str) -> Iterable[Any]:
    lowered = text.strip().lower()
    words = {"true": True, "false": False, "none": None, "null": None, "inf": float("inf")}
    if lowered in words:
        yield words[lowered]
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        yield ast.literal_eval(text.strip())
    yield text


def _annotation_at(cfg: Any, path: Path) -> Any:
    node, annotation = cfg, Any
    for step in path:
        annotation = _annotation_below(node, annotation, step)
        node = dict(children(node)).get(step)
    return annotation


def _annotation_below(node: Any, annotation: Any, step: Step) -> Any:
    if is_config(node):
        return field_annotations(type(node))[str(step)]
    for option in _options(annotation):
        args = get_args(option)
        if get_origin(option) is tuple and args:
            return args[0] if args[-1] is Ellipsis else args[int(step)]
        if isinstance(node, Mapping) and len(args) == 2:
            return args[1]
    return Any


def _options(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _is_config_option(option: Any) -> bool:
    return isinstance(option, type) and hasattr(option, "__config_fields__")


def _example(annotation: Any) -> str:
    examples: dict[Any, str] = {bool: "true", int: "12", float: "0.1", str: "text"}
    first = _options(annotation)[0]
    if first in examples:
        return examples[first]
    args = get_args(first)
    is_literal = (
        args and not isinstance(args[0], type) and get_origin(first) not in (tuple, Callable)
    )
    return str(args[0]) if is_literal else "VALUE"
