"""JSON Schema of a config, for editors that complete and check files as they are typed.

It knows the classes in the tree it is made of, by their `type`. A file may name others, whose
fields only axcore checks.

Source: https://json-schema.org/draft/2020-12/schema.
"""

import collections.abc
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from immutabledict import immutabledict

from axcore.config.build import CallConfig
from axcore.config.define import class_tag, field_annotations, field_docs, field_names
from axcore.config.paths import children
from axcore.config.serialise import wraps_fields
from axcore.config.values import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    UnitInterval,
    is_config,
    is_config_class,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ANY_CONFIG = "config"
_REQUIRED = {
    "type": "object",
    "properties": {"required": {"const": True}},
    "required": ["required"],
}
_SCALARS: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_LIMITS: Mapping[Range, Mapping[str, float]] = {
    get_args(one)[1]: limits
    for one, limits in (
        (PositiveInt, {"minimum": 1}),
        (NonNegativeInt, {"minimum": 0}),
        (PositiveFloat, {"exclusiveMinimum": 0}),
        (NonNegativeFloat, {"minimum": 0}),
        (Fraction, {"minimum": 0, "exclusiveMaximum": 1}),
        (UnitInterval, {"minimum": 0, "maximum": 1}),
    )
}

Schema = dict[str, Any]


def json_schema(cfg: Any) -> Schema:
    """Return the schema of files like the one that a config is saved as."""
    classes = sorted({class_tag(cls): cls for cls in _classes(cfg)}.items())
    definitions = {tag: _class_schema(cls, tag) for tag, cls in classes}
    known = [
        {
            "if": {"properties": {"type": {"const": tag}}, "required": ["type"]},
            "then": {"$ref": _reference(tag)},
        }
        for tag in definitions
    ]
    definitions[_ANY_CONFIG] = {
        "type": "object",
        "anyOf": [{"required": ["type"]}, {"required": ["call"]}],
        "properties": {"type": {"type": "string", "examples": [tag for tag, _ in classes]}},
        "allOf": known,
    }
    return {"$schema": DIALECT, "$ref": _reference(_ANY_CONFIG), "$defs": definitions}


def _classes(value: Any) -> set[type]:
    found = {type(value)} if is_config(value) and not isinstance(value, CallConfig) else set()
    for _, below in children(value):
        found |= _classes(below)
    return found


def _class_schema(cls: type, tag: str) -> Schema:
    annotations, docs = field_annotations(cls), field_docs(cls)
    fields: Schema = {}
    for name in field_names(cls):
        described = {"description": docs[name]} if name in docs else {}
        fields[name] = {"anyOf": [_schema(annotations[name]), _REQUIRED], **described}
    whole: Schema = {"type": "object", "properties": fields, "additionalProperties": False}
    kind = {"const": tag}
    if wraps_fields(cls):
        whole = {"type": "object", "properties": {"type": kind, "fields": whole}}
    else:
        fields["type"] = kind
    summary = (cls.__doc__ or "").strip().partition("\n")[0]
    return {**whole, "title": cls.__qualname__, "description": summary}


def _schema(annotation: Any) -> Schema:
    """Return the schema of a field's values; that of anything where it cannot be said."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return {"type": "null"}
    if annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}
    if type(annotation).__name__ == "TypeAliasType":
        return _schema(annotation.__value__)
    if origin is Annotated:
        limits = [
            _LIMITS[one] for one in arguments[1:] if isinstance(one, Range) and one in _LIMITS
        ]
        return {**_schema(arguments[0]), **(limits[0] if limits else {})}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(option) for option in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is tuple:
        return {"type": "array", "minItems": len(arguments), "maxItems": len(arguments)}
    if annotation in (Mapping, dict, immutabledict) or origin in (
        collections.abc.Mapping,
        immutabledict,
        dict,
    ):
        return {"type": "object"}
    if is_config_class(annotation):
        return {"$ref": _reference(_ANY_CONFIG)}
    return {}


def _reference(name: str) -> str:
    return "#/$defs/" + name.replace("~", "~0").replace("/", "~1")
