"""`read_response_format`: the grammar that a request asks for, by OpenAI's name or by vLLM's."""

import json
from typing import Any

from axcore.inference.grammar import Grammar, json_schema, lark, regex
from axcore.serving.api_error import invalid
from axcore.serving.request_parser import RequestParser, checked_text

_KINDS = ("text", "json_object", "json_schema", "regex", "grammar")
_OUTPUTS = ("json", "regex", "choice", "grammar", "json_object")
"""Fields of vLLM's `structured_outputs`; each but the last is also `guided_` and its name."""

_MAX_CHOICES = 1000


def read_response_format(fields: RequestParser) -> Grammar | None:
    """Return the grammar that a request names; None where any text will do.

    Raises:
        ApiError: There is no such format, it lacks its schema or pattern, or there are several.
    """
    found = {"response_format": _response_format(fields)}
    for name in _OUTPUTS[:-1]:
        field = f"guided_{name}"
        found[field] = _output(name, fields.raw(field), fields.path(field))
    fields.ignore("guided_decoding_backend", "there is one")
    fields.refuse("guided_whitespace_pattern", "A JSON schema has it as x-guidance.")
    outputs = fields.inner("structured_outputs")
    if outputs is not None:
        for name in _OUTPUTS:
            path = outputs.path(name)
            found[path] = _output(name, outputs.raw(name), path)
        outputs.finish()
    named = [name for name, grammar in found.items() if grammar is not None]
    if len(named) > 1:
        raise invalid(f"{named[0]} and {named[1]} ask for two formats; use one", named[1])
    return found[named[0]] if named else None


def _output(name: str, value: Any, path: str) -> Grammar | None:
    """Return the grammar of a field by vLLM's names."""
    if value is None or (name == "json_object" and value is False):
        return None
    if name == "json_object" and value is True:
        return json_schema({"type": "object"})
    if name == "json" and isinstance(value, dict | str):
        return json_schema(value)
    if name in ("regex", "grammar") and isinstance(value, str) and value:
        return (regex if name == "regex" else lark)(checked_text(value, path))
    is_list = name == "choice" and isinstance(value, list) and 0 < len(value) <= _MAX_CHOICES
    if is_list and all(isinstance(one, str) and one for one in value):
        texts = [json.dumps(checked_text(one, path), ensure_ascii=False) for one in value]
        return lark(f"start: {' | '.join(texts)}")
    expected = {
        "json": "a JSON schema",
        "choice": f"a list of 1 to {_MAX_CHOICES} texts",
        "json_object": "true or false",
    }.get(name, "a text")
    raise invalid(f"{path} is {value!r:.40}; expected {expected}", path)


def _response_format(fields: RequestParser) -> Grammar | None:
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


def _grammar(inner: RequestParser, kind: str) -> Grammar | None:
    if kind == "json_object":
        return json_schema({"type": "object"})
    if kind == "json_schema":
        return json_schema(_schema(inner))
    if kind == "regex":
        return regex(_needed(inner, "regex"))
    if kind == "grammar":
        return lark(_needed(inner, "grammar"))
    return None


def _schema(inner: RequestParser) -> Any:
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


def _needed(inner: RequestParser, name: str) -> str:
    text = inner.text(name)
    if not text:
        path = inner.path(name)
        raise invalid(f"{path} is missing; expected a text", path, code="missing_field")
    return text
