"""`read_messages`: the turns of a conversation, as chat templates read them."""

from typing import Any

from axcore.config.json_files import parse_json
from axcore.serving.api_error import invalid
from axcore.serving.inputs import ContentPart, read_part
from axcore.serving.request_parser import RequestParser, check_texts

_MAX_MESSAGES = 4096
_ROLES = ("system", "developer", "user", "assistant", "tool")
_BESIDE_TEXT = ("id", "timestamp", "cache_control", "annotations", "provider_specific_fields")
"""What clients write in addition to the text of a conversation, and no template reads."""

_TEXT_PARTS = ("text", "refusal")
"""Types of parts of a content, each with its text in a field of the same name."""

_NOT_READ = "no template reads it"


def read_messages(fields: RequestParser) -> tuple[dict[str, Any], ...]:
    """Return the turns of a conversation, as templates read them.

    Raises:
        ApiError: There is none, or one is not as it should be.
    """
    found = fields.items("messages", max_items=_MAX_MESSAGES)
    if not found:
        message = "messages is missing or empty; expected a list of turns"
        raise invalid(message, "messages", code="missing_field")
    return tuple(_message(one, f"messages[{number}]") for number, one in enumerate(found))


def _message(content: Any, path: str) -> dict[str, Any]:
    """Return a turn as templates read it: its content is text, or a tuple with other parts."""
    fields = RequestParser(content, path)
    role = fields.choice("role", _ROLES)
    if role is None:
        raise invalid(f"{path}.role is missing", f"{path}.role", code="missing_field")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    text, calls = _content(fields), _tool_calls(fields)
    refusal = fields.text("refusal") if role == "assistant" else None
    if text and refusal:
        where = f"{path}.refusal"
        raise invalid(f"{path} has a content and a refusal; expected one of them", where)
    if refusal is not None:
        text = refusal  # a turn that refused has no other content
    if text is None and not calls:
        where = f"{path}.content"
        raise invalid(f"{where} is missing; expected a text", where, code="missing_field")
    message["content"] = text or ""
    if calls:
        message["tool_calls"] = calls
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := fields.text(name)) is not None:
            message[name] = value
    if (reasoning := fields.text("reasoning")) is not None:  # another name that clients have for it
        message.setdefault("reasoning_content", reasoning)
    for name in ("reasoning_details", "thinking_blocks", *_BESIDE_TEXT):
        fields.ignore(name, _NOT_READ)
    others = () if role == "assistant" else ("refusal",)
    for name in (*others, "audio", "function_call"):
        fields.refuse(name, "Leave it out.", harmless=([],))
    fields.finish()
    return message


def _content(fields: RequestParser) -> str | tuple[str | ContentPart, ...] | None:
    """Return a content: text, or where it has other parts all of them."""
    found, path = fields.raw("content"), fields.path("content")
    if not isinstance(found, list):
        return fields.text("content")
    pieces: list[str | ContentPart] = []
    for number, part in enumerate(found):
        inner = RequestParser(part, f"{path}[{number}]")
        kind = inner.raw("type")
        if kind in _TEXT_PARTS:
            pieces.append(inner.text(kind) or "")
        else:
            pieces.append(read_part(inner, kind))
        for name in _BESIDE_TEXT:
            inner.ignore(name, _NOT_READ)
        inner.finish()
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return "".join(texts) if len(texts) == len(pieces) else tuple(pieces)


def _tool_calls(fields: RequestParser) -> list[dict[str, Any]]:
    """Return the calls of a turn; templates write their arguments as JSON, so they are read."""
    calls = []
    for number, one in enumerate(fields.items("tool_calls", max_items=128) or []):
        call = RequestParser(one, f"{fields.path('tool_calls')}[{number}]")
        function = call.inner("function")
        name = None if function is None else function.text("name")
        if function is None or not name:
            where = call.path("function.name")
            raise invalid(f"{where} is missing", where, code="missing_field")
        arguments = _arguments(function.raw("arguments"), call.path("function.arguments"))
        kept = {"type": "function", "function": {"name": name, "arguments": arguments}}
        call.choice("type", ["function"])
        identity = call.text("id")
        call.raw("index")
        for name in _BESIDE_TEXT[1:]:
            call.ignore(name, _NOT_READ)
        function.finish()
        call.finish()
        calls.append({**kept, **({} if identity is None else {"id": identity})})
    return calls


def _arguments(found: Any, path: str) -> Any:
    try:
        arguments = parse_json(found) if isinstance(found, str) and found else found or {}
    except ValueError as error:
        raise invalid(f"{path} is not valid JSON: {error}", path) from error
    if not isinstance(arguments, dict):
        raise invalid(f"{path} is not valid JSON object", path)
    check_texts(arguments, path)
    return arguments
