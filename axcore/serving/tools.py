"""Calls of tools in what a model writes, for the families whose way of writing them is known.

- `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere in an answer: Hermes, Qwen.
- `{"name": ..., "parameters": {...}}` as the full answer: Llama 3.

What the templates of others make a model write stays text, and so does a call that is not valid
JSON.
"""

import json
import re
import secrets
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import attrs

from axcore.data import Tokenizer
from axcore.errors import RequestError
from axcore.inference.grammar import Grammar, check_schema_size, lark
from axcore.serving.api_error import from_error, invalid
from axcore.serving.request_parser import RequestParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@attrs.frozen
class ToolCall:
    """A call that a model asks for.

    Args:
        name: Of the function.
        arguments: A JSON object, as text.
        id: What the answer to it names.
    """

    name: str
    arguments: str
    id: str = attrs.field(factory=lambda: f"call_{secrets.token_hex(12)}")

    def as_json(self, index: int) -> dict[str, Any]:
        """Return the call as responses have it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": index, "id": self.id, "type": "function", "function": function}


class ToolCallReader(Protocol):
    """Reads an answer piece by piece."""

    def read(self, text: str) -> list[str | ToolCall]:
        """Return what is known to be text or a call after a piece, in order."""
        ...

    def finish(self) -> list[str | ToolCall]:
        """Return what is left at the end of the answer."""
        ...


def _writes_marks(template: str | None) -> bool:
    """Return whether a chat template writes calls between `<tool_call>` marks."""
    return template is not None and OPEN in template


def tool_call_reader(template: str | None, special: Container[str] = frozenset()) -> ToolCallReader:
    """Return the reader for answers to what a chat template writes.

    Args:
        template: The template.
        special: Marks that are special tokens, which have no text: calls are what is left.
    """
    if _writes_marks(template):
        return WholeCall() if OPEN in special else MarkedCalls()
    if template is not None and '"parameters"' in template and "python" in template:
        return WholeCall()
    return PlainText()


class PlainText:
    """Reads no calls."""

    def read(self, text: str) -> list[str | ToolCall]:
        """Return the text."""
        return [text] if text else []

    def finish(self) -> list[str | ToolCall]:
        """Return nothing."""
        return []


class MarkedCalls:
    """Reads calls between `<tool_call>` and `</tool_call>`."""

    def __init__(self) -> None:
        self._held, self._is_within = "", False

    def read(self, text: str) -> list[str | ToolCall]:
        """Return text up to what may begin a call, and calls that are whole."""
        self._held += text
        found: list[str | ToolCall] = []
        while True:
            mark = CLOSE if self._is_within else OPEN
            before, is_there, after = self._held.partition(mark)
            if not is_there:
                break
            found += [_call(before, OPEN, CLOSE)] if self._is_within else [before]
            self._held, self._is_within = after, not self._is_within
        if not self._is_within:
            # The beginning of a mark may be its whole; it
            # is kept back until the next piece decides.
            kept = _overlap(self._held, OPEN)
            found.append(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]
        return [one for one in found if one]

    def finish(self) -> list[str | ToolCall]:
        """Return a call whose end is missing as a call where it is whole, as text otherwise."""
        # A model that was cut off by its limit of tokens,
        # or by a stop string, leaves the mark open.
        held, self._held = self._held, ""
        if self._is_within:
            return [_call(held, OPEN, "")]
        return [held] if held else []


class WholeCall:
    """Reads an answer that is one call, or several with semicolons between them.

    Args:
        max_calls: Calls that are kept, the first ones; None keeps all.
    """

    def __init__(self, *, max_calls: int | None = None) -> None:
        self._held, self._is_text, self._max_calls = "", False, max_calls

    def read(self, text: str) -> list[str | ToolCall]:
        """Return text as soon as it begins with what no call does."""
        if self._is_text:
            return [text] if text else []
        self._held += text
        begin = self._held.lstrip()
        # Only an object can be a call, and the first letter says whether it is one.
        if not begin or begin.startswith("{"):
            return []
        self._is_text, held, self._held = True, self._held, ""
        return [held]

    def finish(self) -> list[str | ToolCall]:
        """Return the calls, or the text that is none."""
        if not self._held:
            return []
        decoder, rest = json.JSONDecoder(), self._held.strip()
        calls: list[str | ToolCall] = []
        while rest:
            try:
                _, end = decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                # Not a call after all, so nothing of the text may be lost.
                return [self._held]
            calls.append(_call(rest[:end], "", ""))
            rest = rest[end:].lstrip("; \n")
        are_calls = all(isinstance(call, ToolCall) for call in calls)
        return calls[: self._max_calls] if are_calls else [self._held]


def _call(text: str, opened: str, closed: str) -> str | ToolCall:
    """Return the call that a text is; the text with its marks where it is none."""
    try:
        found = json.loads(text)
        name = found["name"]
        arguments = found.get("arguments", found.get("parameters", {}))
    # A model writes what it likes; what is not a call is text, and no error of the server.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{opened}{text}{closed}"
    # Some templates have arguments as text already; encoding it again would quote it twice.
    if isinstance(arguments, str):
        return ToolCall(str(name), arguments)
    return ToolCall(str(name), json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, mark: str) -> int:
    """Return how many letters at the end of a text may begin a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)


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


_MARKED = _CallFormat(before="<tool_call>\n", after="\n</tool_call>", between="\n")
_WHOLE = {True: _CallFormat(arguments="parameters"), False: _CallFormat()}


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
    """Return what finds calls in an answer; a forced one is found whatever the template."""
    reader = tool_call_reader(template if choice.tools else None, special)
    if choice.forced and not isinstance(reader, MarkedCalls):
        return WholeCall()
    if choice.is_single and isinstance(reader, WholeCall):
        return WholeCall(max_calls=1)
    return reader


def call_stops(
    choice: ToolChoice, template: str | None, special: Mapping[str, int] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the texts that end an answer which makes one call at most."""
    reader = tool_call_reader(template if choice.tools else None, special)
    is_open = choice.is_single and not choice.forced
    return (_MARKED.after.strip(),) if is_open and isinstance(reader, MarkedCalls) else ()


def forced_calls(
    choice: ToolChoice, template: str | None, special: Mapping[str, int] = MappingProxyType({})
) -> Grammar | None:
    """Return what an answer has to match that must call a function; None where it need not.

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
    style = _MARKED if _writes_marks(template) else _WHOLE[is_whole]
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
    parts = re.split(f"({OPEN}|{CLOSE})", text)
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
