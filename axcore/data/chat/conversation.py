"""Conversations as they are in records: OpenAI's messages or ShareGPT's, made into one form."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from axcore.config.json_files import parse_json
from axcore.data.chat.chat_template import Message
from axcore.errors import DataError

FIELDS = ("messages", "conversations")
"""Fields of a record that hold its messages: OpenAI's and ShareGPT's."""

EXTRAS = ("tools", "system", "chat_template_kwargs")
"""Fields that belong to its messages, where a record has them."""

ROLES = ("system", "developer", "user", "assistant", "tool")

_MIN_WEIGHT, _MAX_WEIGHT = 1e-6, 1e6
"""So that sums of weights in float32 stay what they are."""

_SHARE_GPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}


@attrs.frozen
class Conversation:
    """Messages in the form that chat templates read.

    Attributes:
        messages: The turns, the first one first; each has a `role`, and text or none as `content`.
        weights: Of each message: what each of its tokens weighs in the loss, 0 or more.
        tools: JSON schemas of functions that the model may call.
    """

    messages: tuple[Message, ...]
    weights: tuple[float, ...]
    tools: tuple[Any, ...] | None = None


def read_conversation(
    record: Mapping[str, Any],
    *,
    field: str | None = None,
    roles: Sequence[str] = ROLES,
    soft_token: str | None = None,
) -> Conversation:
    """Return the conversation of a record.

    Args:
        record: Has the messages, and perhaps `tools` and `system`.
        field: Which of its fields contains the messages; None for the one of `FIELDS` that it has.
        roles: What messages may have as their role.
        soft_token: What text has in the place of a part of another type, such as a picture; where
            None, such parts are an error.

    Raises:
        DataError: It has no messages, or one that is not as it should be.
    """
    name = field or next((one for one in FIELDS if record.get(one) is not None), FIELDS[0])
    found = record.get(name)
    if not isinstance(found, Sequence) or isinstance(found, str) or not len(found):
        raise DataError(
            f"Field {name!r} contains {_shown(found)}, not a list of messages.",
            hint='Write [{"role": "user", "content": "Hello"}, ...], or ShareGPT\'s '
            '[{"from": "human", "value": "Hello"}, ...].',
        )
    read = [_message(one, place, roles, soft_token) for place, one in enumerate(found)]
    system = record.get("system")
    if isinstance(system, str) and system and read[0][0]["role"] != "system":
        read.insert(0, ({"role": "system", "content": system}, 1.0))
    messages, weights = zip(*read, strict=True)
    return Conversation(messages, weights, _tools(record.get("tools")))


def template_values(record: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else a chat template reads: given values, and before them those of a record.

    Raises:
        DataError: The record's are not an object, or are what the conversation itself says.
    """
    found = record.get("chat_template_kwargs") or {}
    taken = {"messages", "tools", "add_generation_prompt"}
    if not isinstance(found, Mapping) or taken & {*found, *values}:
        raise DataError(
            f"chat_template_kwargs is {_shown({**values, **found})}; expected an object of values "
            f"other than {', '.join(sorted(taken))}."
            if isinstance(found, Mapping)
            else f"chat_template_kwargs is {_shown(found)}; expected an object.",
            hint='Write what the template reads, as {"enable_thinking": false}.',
        )
    return {**values, **{name: one for name, one in found.items() if one is not None}}


def _message(
    found: Any, place: int, roles: Sequence[str], soft_token: str | None
) -> tuple[dict[str, Any], float]:
    """Return a message and its weight."""
    where = f"Message {place + 1}"
    if not isinstance(found, Mapping) or not {"role", "from"} & set(found):
        raise DataError(
            f"{where} is {_shown(found)}, which has no role.",
            hint='Each is an object such as {"role": "user", "content": "Hello"}.',
        )
    message = _from_share_gpt(found, where) if "role" not in found else _plain(found)
    role, weight = message["role"], message.pop("weight", 1)
    if role not in roles:
        raise DataError(
            f"{where} has the role {role!r}; expected {', '.join(roles)}.",
            hint="Correct the role, or name it in `roles` where the chat template knows it.",
        )
    _check_weight(weight, where)
    message["content"] = _text(message.get("content"), where, soft_token)
    if message["content"] is None and not message.get("tool_calls"):
        raise DataError(f"{where} has neither content nor tool_calls.")
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], where)
    return message, float(weight)


def _check_weight(weight: Any, where: str) -> None:
    is_number = isinstance(weight, int | float) and 0 <= weight <= _MAX_WEIGHT
    if not is_number or 0 < weight < _MIN_WEIGHT:
        raise DataError(
            f"{where} has the weight {weight!r}; expected 0, or a number from {_MIN_WEIGHT:g} to "
            f"{_MAX_WEIGHT:g}.",
            hint="It is what each token of the message weighs in the loss: 1 by default, 0 leaves "
            "the message out.",
        )


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without what it does not have: columnar files contain null for that."""
    return {name: value for name, value in found.items() if value is not None}


def _from_share_gpt(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = _SHARE_GPT_ROLES.get(str(found["from"]), found["from"])
    message = {"role": role, "content": found.get("value")}
    if found["from"] == "function_call":
        call = _json(found.get("value"), f"{where}, a function call,")
        calls = call if isinstance(call, list) else [call]
        message["content"] = ""
        message["tool_calls"] = [{"type": "function", "function": one} for one in calls]
    return message | ({"weight": found["weight"]} if found.get("weight") is not None else {})


def _text(content: Any, where: str, soft_token: str | None) -> str | None:
    """Return a message's text, of which OpenAI's layout may hold several parts."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [
            part["text"] if _is_text(part) else soft_token if _is_input(part) else None
            for part in content
        ]
        if None not in parts:
            return "".join(part for part in parts if part is not None)
    raise DataError(
        f"{where} has as content {_shown(content)}; expected text, or a list of parts of text.",
        hint="Pictures and sound are read by ExampleData, with ChatText and a feature of theirs.",
    )


def _is_input(part: Any) -> bool:
    """Whether a part is of another type than text, as `{"type": "image"}`."""
    return isinstance(part, Mapping) and part.get("type") not in (None, "text")


def _is_text(part: Any) -> bool:
    is_part = isinstance(part, Mapping) and part.get("type") == "text"
    return is_part and isinstance(part.get("text"), str)


def _calls(calls: Any, where: str) -> list[Any]:
    """Return tool calls, their arguments as objects, as chat templates expect them."""
    if not isinstance(calls, Sequence) or not all(isinstance(one, Mapping) for one in calls):
        raise DataError(f"{where} has as tool_calls {_shown(calls)}; expected a list of objects.")
    return [_call(one, where) for one in calls]


def _call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    arguments = _json(function["arguments"], f"{where}, arguments of {function.get('name')!r},")
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(tools: Any) -> tuple[Any, ...] | None:
    if tools is None or tools == "":
        return None
    found = _json(tools, "Field 'tools'") if isinstance(tools, str) else tools
    if not isinstance(found, Sequence) or not all(isinstance(one, Mapping) for one in found):
        raise DataError(f"Field 'tools' contains {_shown(found)}; expected a list of JSON schemas.")
    return tuple(found) or None


def _json(text: Any, what: str) -> Any:
    if not isinstance(text, str):
        raise DataError(f"{what} is not JSON: {_shown(text)}.")
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{what} is not JSON: {_shown(text)} ({error}).") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
