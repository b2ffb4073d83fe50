"""Grammars of answers that have to call a function, as the chat template's family writes calls."""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from axcore.data import Tokenizer
from axcore.errors import RequestError
from axcore.inference.grammar import Grammar, check_schema_size, lark
from axcore.serving.api_error import from_error, invalid
from axcore.serving.tool_calls import (
    CLOSE,
    OPEN,
    MarkedCalls,
    ToolCallReader,
    WholeCall,
    tool_call_reader,
    writes_marks,
)
from axcore.serving.tool_choice import ToolChoice

_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as templates write it; with free white space an answer could continue for ever."""

_PARTS = {"$ref", "allOf", "anyOf", "if", "oneOf", "patternProperties", "unevaluatedProperties"}


@attrs.frozen(kw_only=True)
class CallFormat:
    """How a call is written.

    Args:
        before: What a call begins with.
        arguments: Key of the arguments.
        after: What it ends with.
        between: What is written between two calls.
    """

    before: str = ""
    arguments: str = "arguments"
    after: str = ""
    between: str = "; "


_MARKED = CallFormat(before="<tool_call>\n", after="\n</tool_call>", between="\n")
_WHOLE = {True: CallFormat(arguments="parameters"), False: CallFormat()}


def special_marks(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the numbers of the marks of calls that are special tokens, which have no text."""
    numbers = {mark: tokenizer.added_token(mark) for mark in (OPEN, CLOSE)}
    return {
        mark: number
        for mark, number in numbers.items()
        if number is not None and tokenizer.token_bytes(number) is None
    }


def call_reader(
    choice: ToolChoice, template: str | None, special: Mapping[str, int] = MappingProxyType({})
) -> ToolCallReader:
    """Returns what finds calls in an answer; a forced one is found whatever the template."""
    reader = tool_call_reader(template if choice.tools else None, special)
    if choice.forced and not isinstance(reader, MarkedCalls):
        return WholeCall()
    if choice.is_single and isinstance(reader, WholeCall):
        return WholeCall(most=1)
    return reader


def call_stops(
    choice: ToolChoice, template: str | None, special: Mapping[str, int] = MappingProxyType({})
) -> tuple[str, ...]:
    """Returns the texts that end an answer which makes one call at most."""
    reader = tool_call_reader(template if choice.tools else None, special)
    is_open = choice.is_single and not choice.forced
    return (_MARKED.after.strip(),) if is_open and isinstance(reader, MarkedCalls) else ()


def forced_calls(
    choice: ToolChoice, template: str | None, special: Mapping[str, int] = MappingProxyType({})
) -> Grammar | None:
    """Returns what an answer has to match that must call a function; None where it need not.

    Args:
        choice: What may be called.
        template: The chat template, whose family decides how calls are written.
        special: See `special_marks`.

    Raises:
        ApiError: The parameters of a function are not those of an object.
    """
    if not choice.forced:
        return None
    is_whole = isinstance(tool_call_reader(template), WholeCall)
    style = _MARKED if writes_marks(template) else _WHOLE[is_whole]
    more = "" if choice.is_single else f" ({_literal(style.between)} call)*"
    names = [f"call_{number}" for number in range(len(choice.forced))]
    rules = [f"start: call{more}", f"call: {' | '.join(names)}"]
    for name, function in zip(names, choice.forced, strict=True):
        rules.append(f"{name}: {_call(function, style, special)}")
    return lark("\n".join(rules))


def _call(function: Mapping[str, Any], style: CallFormat, special: Mapping[str, int]) -> str:
    name = json.dumps(function["name"], ensure_ascii=False)
    before = f'{style.before}{{"name": {name}, "{style.arguments}": '
    schema = json.dumps({**_parameters(function), "x-guidance": _JSON_STYLE})
    after = _with_marks("}" + style.after, special)
    return f"{_with_marks(before, special)} %json {schema} {after}"


def _with_marks(text: str, special: Mapping[str, int]) -> str:
    """Return a text as grammars have it: no text of a special token matches that token."""
    parts = re.split(f"({OPEN}|{CLOSE})", text)
    return " ".join(
        f"<[{special[part]}]>" if part in special else _literal(part) for part in parts if part
    )


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a function's arguments, which are an object; it may have none."""
    found = function.get("parameters")
    if found is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kind = found.get("type", "object")
    if kind != "object":
        name = function["name"]
        message = f"parameters of the function {name!r:.80} have the type {kind!r:.40}"
        raise invalid(f"{message}; expected 'object', to force a call", "tools")
    try:
        check_schema_size(found)
    except RequestError as error:
        raise from_error(error, "tools") from error
    # A schema that does not say so allows any other argument: a greedy model can add them without
    # end, and no function takes them. In a schema of several parts no part knows the others' names.
    is_closed = "properties" in found and not _PARTS & found.keys()
    others = {"additionalProperties": False} if is_closed else {}
    return {**others, **found, "type": "object"}


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
