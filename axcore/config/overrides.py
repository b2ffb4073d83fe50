"""Overrides as a user types them: `path=value`, the value read by the type of the field."""

import ast
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from axcore.config.define import Origin, field_annotations
from axcore.config.edit import matching_paths, set_at_each
from axcore.config.json_files import exact_float, first_double
from axcore.config.paths import Path, Step, children, format_path, parse_pattern
from axcore.config.values import (
    REQUIRED,
    FromText,
    Mismatch,
    OutOfRange,
    checker,
    is_config,
    type_name,
)
from axcore.errors import ConfigError


def apply_overrides(cfg: Any, overrides: Iterable[str], *, set_in: str = "--set") -> Any:
    """Return `cfg` with `path=value` texts applied in order.

    Raises:
        ConfigError: Listing every text that is not a `path=value`, names no path, or whose value
            does not fit the field.
    """
    problems: list[str] = []
    for text in overrides:
        try:
            cfg = _apply(cfg, text, set_in)
        except ConfigError as error:
            problems.append(str(ConfigError(error.what, where=error.where, hint=error.hint)))
    if problems:
        raise ConfigError("\n".join(problems), set_in=set_in)
    return cfg


def _apply(cfg: Any, text: str, set_in: str) -> Any:
    path_text, equals, value_text = text.partition("=")
    if not equals:
        raise ConfigError(f"expected PATH=VALUE, got {text!r}", hint=f"--set {text}=VALUE")
    values = {}
    for path in matching_paths(cfg, parse_pattern(path_text.strip())):
        annotation, present = _field_at(cfg, path)
        values[path] = parse_value(value_text, annotation, where=format_path(path), present=present)
    return set_at_each(cfg, values, Origin(f"{set_in} {text}"))


def parse_value(text: str, annotation: Any, *, where: str = "", present: Any = REQUIRED) -> Any:
    """Return the value that a text means in a field of that type.

    Args:
        text: What the user typed.
        annotation: Of the field.
        where: The field's path.
        present: What the field holds, as an example of what it may hold.

    Raises:
        ConfigError: No reading of the text fits.
    """
    check = checker(annotation)
    for metadata in getattr(annotation, "__metadata__", ()):
        if isinstance(metadata, FromText):
            return check(metadata.read(text))
    problem = f"expected {type_name(annotation)}, got {text!r}"
    try:
        readings = [*_readings(text), text]
    except ValueError as error:  # text that means a value, and not the value that it says
        is_text = str in _options(annotation) and float not in _options(annotation)
        problem, readings = str(error), [text] if is_text else []
    for reading in readings:
        try:
            return check(reading)
        except OutOfRange as mismatch:
            problem = mismatch.describe(where.rpartition(".")[2] or "the value")
        except Mismatch:
            continue
    hint = f"--set {where}={_example(annotation, present)}"
    if any(_is_config_option(option) for option in _options(annotation)):
        hint = f"set the fields inside of it, --set {where}.FIELD=VALUE; or replace_config"
    raise ConfigError(problem, where=where, hint=hint)


def _readings(text: str) -> Iterable[Any]:
    lowered = text.strip().lower()
    literals = {"true": True, "false": False, "none": None, "null": None, "inf": float("inf")}
    if lowered in literals:
        yield literals[lowered]
    try:
        tree = ast.parse(text.strip(), mode="eval")
        value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return
    _check_literal(tree, text.strip())
    yield value


def _check_literal(tree: ast.Expression, text: str) -> None:
    """Raise ValueError where Python drops a part of what a text says, without a word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            exact_float(ast.get_source_segment(text, node) or "")
        if isinstance(node, ast.Dict):
            keys = [ast.literal_eval(key) for key in node.keys if key is not None]
            if len(set(keys)) < len(keys):
                raise ValueError(f"the key {first_double(keys)!r} is twice in one mapping")


def _field_at(cfg: Any, path: Path) -> tuple[Any, Any]:
    """Return the annotation of the field at a path, and what the field holds."""
    node, annotation = cfg, Any
    for step in path:
        annotation = _annotation_below(node, annotation, step)
        node = dict(children(node)).get(step, REQUIRED)
    return annotation, node


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
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _is_config_option(option: Any) -> bool:
    return isinstance(option, type) and hasattr(option, "__config_fields__")


def _example(annotation: Any, present: Any) -> str:
    """Return a value that fits: the first of a `Literal`, or what the field contains now."""
    first = _options(annotation)[0]
    if get_origin(first) is Literal:
        return str(get_args(first)[0])
    if isinstance(present, bool):
        return str(present).lower()
    return str(present) if isinstance(present, (int, float, str)) and present != "" else "VALUE"
