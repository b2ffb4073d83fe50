"""`ToolChoice`: which functions an answer may or must call, as requests say it."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from axcore.serving.api_error import invalid
from axcore.serving.fields import Fields

MAX_TOOLS = 128
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


def read_tool_choice(fields: Fields) -> ToolChoice:
    """Returns what `tools`, `tool_choice` and `parallel_tool_calls` say together.

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


def _tools(fields: Fields) -> list[Any]:
    found = fields.items("tools", most=MAX_TOOLS) or []
    for number, one in enumerate(found):
        path = f"tools[{number}]"
        tool = Fields(one, path)
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
    return [
        {name: value for name, value in one.items() if name != "cache_control"} for one in found
    ]


def _function_name(fields: Fields) -> str:
    """Returns the name in `{"type": "function", "function": {"name": ...}}`."""
    choice = Fields(fields.raw("tool_choice"), fields.path("tool_choice"))
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
