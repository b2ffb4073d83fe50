"""`ToolChoice`: which functions an answer may or must call, and the grammar that forces a call."""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from axcore.data.chat.parsers.formats import HERMES, LLAMA, ToolFormat
from axcore.errors import RequestError
from axcore.inference.grammar import Grammar, check_schema_size, lark
from axcore.serving.api_error import from_error, invalid
from axcore.serving.request_parser import RequestParser

_MAX_TOOLS = 128
_MODES = ("none", "auto", "required")


@attrs.frozen(kw_only=True)
class ToolChoice:
    """What an answer may call.

    Args:
        tools: What the template reads; None where there are none, or none may be called.
        forced: The functions of which the answer has to call one; empty leaves it to the model.
        is_single: Whether an answer makes one call at most.
    """

    tools: list[Any] | None = None
    forced: tuple[Mapping[str, Any], ...] = ()
    is_single: bool = False


def read_tool_choice(fields: RequestParser) -> ToolChoice:
    """Return what `tools`, `tool_choice` and `parallel_tool_calls` say together.

    Raises:
        ApiError: A tool lacks its name, or a function is chosen that there is not.
    """
    tools = _tools(fields)
    is_single = not fields.boolean("parallel_tool_calls", default=True)
    choice, path = fields.raw("tool_choice"), fields.path("tool_choice")
    name = _function_name(fields) if isinstance(choice, dict) else None
    mode = fields.choice("tool_choice", _MODES) if name is None else None
    if mode == "none":
        return ToolChoice()
    if not tools and choice is not None and mode != "auto":
        raise invalid(f"{path} needs tools, and there are none", path)
    functions = [tool["function"] for tool in tools]
    if name is not None:
        functions, is_single = _named(functions, name), True
    is_forced = name is not None or mode == "required"
    forced = tuple(functions) if is_forced else ()
    return ToolChoice(tools=tools or None, forced=forced, is_single=is_single)


def _tools(fields: RequestParser) -> list[Any]:
    found = fields.items("tools", max_items=_MAX_TOOLS) or []
    for number, one in enumerate(found):
        path = f"tools[{number}]"
        tool = RequestParser(one, path)
        if tool.choice("type", ["function"]) is None:
            raise invalid(f"{path}.type is missing; expected 'function'", f"{path}.type")
        function = tool.inner("function")
        if function is None or not function.text("name"):
            raise invalid(f"{path}.function.name is missing", f"{path}.function.name")
        function.text("description")
        function.inner("parameters")
        function.boolean("strict")
        function.finish()
        tool.ignore("cache_control", "prompts that begin alike are computed once anyway")
        tool.finish()
    # Not for the template, which would write it into the prompt.
    return [
        {name: value for name, value in one.items() if name != "cache_control"} for one in found
    ]


def _function_name(fields: RequestParser) -> str:
    """Return the name in `{"type": "function", "function": {"name": ...}}`."""
    choice = RequestParser(fields.raw("tool_choice"), fields.path("tool_choice"))
    kind, function = choice.choice("type", ["function"]), choice.inner("function")
    name = None if function is None else function.text("name")
    if kind is None or function is None or not name:
        path = choice.path("type" if kind is None else "function.name")
        raise invalid(f"{path} is missing", path, code="missing_field")
    function.finish()
    choice.finish()
    return name


def _named(functions: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    found = [function for function in functions if function["name"] == name]
    if not found:
        known = ", ".join(repr(function["name"]) for function in functions)
        message = f"tool_choice names the function {name!r:.80}; tools has {known}"
        raise invalid(message, "tool_choice.function.name")
    return found[:1]


_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as templates write it; with free white space an answer could continue for ever."""

_PARTS = {"$ref", "allOf", "anyOf", "if", "oneOf", "patternProperties", "unevaluatedProperties"}


@attrs.frozen(kw_only=True)
class _CallFormat:
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


_STYLES = {
    HERMES.name: _CallFormat(before="<tool_call>\n", after="\n</tool_call>", between="\n"),
    LLAMA.name: _CallFormat(arguments="parameters"),
}


def forced_format(found: ToolFormat | None) -> ToolFormat:
    """Return how a forced call is written; that of most families is JSON alone."""
    return HERMES if found is HERMES else LLAMA


def forced_calls(
    choice: ToolChoice,
    found: ToolFormat | None,
    special: Mapping[str, int] = MappingProxyType({}),
) -> Grammar | None:
    """Return what an answer has to match that must call a function; None where it need not.

    Args:
        choice: What may be called.
        found: How the model's family writes calls.
        special: Marks that are special tokens, by their numbers.

    Raises:
        ApiError: The parameters of a function are not those of an object.
    """
    if not choice.forced:
        return None
    style = _STYLES.get(found.name if found else "", _CallFormat())
    more = "" if choice.is_single else f" ({_literal(style.between)} call)*"
    names = [f"call_{number}" for number in range(len(choice.forced))]
    rules = [f"start: call{more}", f"call: {' | '.join(names)}"]
    for name, function in zip(names, choice.forced, strict=True):
        rules.append(f"{name}: {_call_rule(function, style, special)}")
    return lark("\n".join(rules))


def _call_rule(function: Mapping[str, Any], style: _CallFormat, special: Mapping[str, int]) -> str:
    name = json.dumps(function["name"], ensure_ascii=False)
    before = f'{style.before}{{"name": {name}, "{style.arguments}": '
    schema = json.dumps({**_parameters(function), "x-guidance": _JSON_STYLE})
    after = _with_marks("}" + style.after, special)
    return f"{_with_marks(before, special)} %json {schema} {after}"


def _with_marks(text: str, special: Mapping[str, int]) -> str:
    """Return a text as grammars have it: no text of a special token matches that token."""
    parts = re.split("(</?tool_call>)", text)
    return " ".join(
        f"<[{special[part]}]>" if part in special else _literal(part) for part in parts if part
    )


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, which are an object; it may have none."""
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
