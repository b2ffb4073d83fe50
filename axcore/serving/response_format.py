"""`response_format`: what answers must follow, as the grammar that an engine holds them to."""

from typing import Any

from axcore.inference.grammar import Grammar, json_schema, lark, regex
from axcore.serving.api_error import invalid
from axcore.serving.fields import Fields

_KINDS = ("text", "json_object", "json_schema", "regex", "grammar")


def read_response_format(fields: Fields) -> Grammar | None:
    """Returns the grammar that a request names; None where any text will do.

    Raises:
        ApiError: There is no such format, or it lacks its schema or pattern.
    """
    inner = fields.inner("response_format")
    if inner is None:
        return None
    kind = inner.choice("type", _KINDS)
    if kind is None:
        path = inner.path("type")
        raise invalid(f"{path} is missing; expected one of {', '.join(_KINDS)}", path)
    grammar = _grammar(inner, kind)
    inner.finish()
    return grammar


def _grammar(inner: Fields, kind: str) -> Grammar | None:
    if kind == "json_object":
        return json_schema({"type": "object"})
    if kind == "json_schema":
        return json_schema(_schema(inner))
    if kind == "regex":
        return regex(_needed(inner, "regex"))
    if kind == "grammar":
        return lark(_needed(inner, "grammar"))
    return None


def _schema(inner: Fields) -> Any:
    named = inner.inner("json_schema")
    schema = None if named is None else named.raw("schema")
    if named is None or not isinstance(schema, dict):
        path = inner.path("json_schema.schema")
        raise invalid(f"{path} is missing; expected a JSON schema", path, code="missing_field")
    named.text("name")
    named.text("description")
    named.boolean("strict")
    named.finish()
    return schema


def _needed(inner: Fields, name: str) -> str:
    text = inner.text(name)
    if not text:
        path = inner.path(name)
        raise invalid(f"{path} is missing; expected a text", path, code="missing_field")
    return text
