"""`ResponseRequest`: the body of `/v1/responses`, which is answered as a chat is.

Nothing is kept: `previous_response_id` is refused, and a conversation is sent in full.
"""

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from axcore.data.chat.parsers.formats import merged
from axcore.data.chat.parsers.pieces import Piece
from axcore.serving.api_error import ApiError, invalid
from axcore.serving.chat_api import ChatJob, ChatRequest, read_chat, start_chat
from axcore.serving.config import Limits
from axcore.serving.metrics import RequestStats
from axcore.serving.request_handler import generate
from axcore.serving.request_parser import RequestParser
from axcore.serving.response_items import OutputWriter
from axcore.serving.responses import CompletionSet
from axcore.serving.served_model import ServedModel

_PASSED = (
    *("model", "temperature", "top_p", "stream", "parallel_tool_calls", "user", "metadata"),
    *("safety_identifier", "prompt_cache_key", "service_tier", "store"),
    *("seed", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("stop", "min_tokens", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    *("skip_special_tokens", "logit_bias", "priority", "chat_template_kwargs"),
)
"""Fields that chats have by the same names."""

_UNSUPPORTED = {
    "previous_response_id": ("Nothing is kept; send the conversation as input.", ()),
    "conversation": ("Nothing is kept; send the conversation as input.", ()),
    "background": ("Ask with stream: true.", (False,)),
    "truncation": ("Shorten the input.", ("disabled",)),
    "prompt": ("Send its text as instructions and input.", ()),
    "max_tool_calls": ("Tools are called by clients.", ()),
    "top_logprobs": ("Ask /v1/chat/completions.", (0,)),
    "context_management": ("Shorten the input.", ([],)),
}
_IGNORED_INCLUDES = ("reasoning.encrypted_content",)
_TEXTS = ("input_text", "output_text", "text", "refusal")
_NOT_READ = "no template reads it"


@attrs.frozen(kw_only=True)
class ResponseRequest:
    """What answers a conversation.

    Args:
        chat: The same as a chat.
        echoed: Fields that a response repeats.
    """

    chat: ChatRequest
    echoed: dict[str, Any]


def read_response(content: Any, limits: Limits) -> ResponseRequest:
    """Return a request from its body.

    Raises:
        ApiError: A field is unknown, not supported, or has a value that cannot be used.
    """
    fields = RequestParser(content)
    for name, (why, harmless) in _UNSUPPORTED.items():
        fields.refuse(name, why, harmless=harmless)
    instructions = fields.text("instructions")
    turns = [] if instructions is None else [{"role": "system", "content": instructions}]
    most = fields.integer("max_output_tokens", min_value=1, max_value=2**31 - 1)
    tools, choice = _tools(fields), _tool_choice(fields)
    _check_include(fields)
    text, reasoning = _text(fields), _reasoning(fields)
    body = {
        **{name: value for name in _PASSED if (value := fields.raw(name)) is not None},
        "messages": [*turns, *_messages(fields)],
        "tools": tools or None,
        "tool_choice": choice,
        "max_completion_tokens": most,
        "reasoning_effort": reasoning.get("effort"),
        **text,
    }
    options = fields.inner("stream_options")
    if options is not None:
        options.refuse("include_obfuscation", "Pieces are sent as they are.", harmless=(False,))
        options.finish()
    fields.finish()
    try:
        chat = read_chat(body, limits)
    except ApiError as error:
        raise _named(error) from error
    sampling = chat.settings.sampling
    return ResponseRequest(
        chat=chat,
        echoed={
            "instructions": instructions,
            "max_output_tokens": most,
            "metadata": fields.raw("metadata") or {},
            "parallel_tool_calls": not chat.tool_choice.is_single,
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": (fields.raw("text") or {}).get("format") or {"type": "text"}},
            "tool_choice": fields.raw("tool_choice") or "auto",
            "tools": fields.raw("tools") or [],
            "top_p": sampling.top_p,
            "truncation": "disabled",
        },
    )


def _named(error: ApiError) -> ApiError:
    """Return the error of a chat's field by the name that it has here."""
    names = {"messages": "input", "response_format": "text.format"}
    first = (error.param or "").partition(".")[0].partition("[")[0]
    return ApiError(
        error.status, error.message, param=names.get(first, error.param), code=error.code
    )


def _check_include(fields: RequestParser) -> None:
    for name in fields.items("include", max_items=16) or []:
        if name not in _IGNORED_INCLUDES:
            message = f"include has {name!r:.60}, which is not supported; leave it out"
            raise invalid(message, "include", code="unsupported_field")
        fields.ignore("include", "reasoning is not encrypted")


def _tools(fields: RequestParser) -> list[dict[str, Any]]:
    """Return functions as chats have them."""
    found = []
    for number, one in enumerate(fields.items("tools", max_items=128) or []):
        tool = RequestParser(one, f"tools[{number}]")
        if tool.raw("type") != "function":
            path = tool.path("type")
            raise invalid(f"{path} is {tool.raw('type')!r:.40}; expected 'function'", path)
        names = ("name", "description", "parameters", "strict")
        function = {name: value for name in names if (value := tool.raw(name)) is not None}
        tool.finish()
        found.append({"type": "function", "function": function})
    return found


def _tool_choice(fields: RequestParser) -> Any:
    choice = fields.raw("tool_choice")
    if not isinstance(choice, dict):
        return choice
    named = RequestParser(choice, "tool_choice")
    kind, name = named.choice("type", ["function"]), named.text("name")
    named.finish()
    return {"type": kind, "function": {"name": name}}


def _text(fields: RequestParser) -> dict[str, Any]:
    """Return the format of a text as chats have it."""
    text = fields.inner("text")
    if text is None:
        return {}
    form, verbosity = text.raw("format"), text.text("verbosity")
    text.finish()
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        form = {"type": "json_schema", "json_schema": schema}
    return {"response_format": form, "verbosity": verbosity}


def _reasoning(fields: RequestParser) -> dict[str, Any]:
    inner = fields.inner("reasoning")
    if inner is None:
        return {}
    found = {"effort": inner.text("effort")}
    for name in ("summary", "generate_summary"):
        inner.ignore(name, "reasoning is sent as it is")
    inner.finish()
    return found


def _messages(fields: RequestParser) -> list[dict[str, Any]]:
    """Return the turns of an input: calls and reasoning belong to a turn of the assistant."""
    found = fields.raw("input")
    if found is None or found == []:
        raise invalid("input is missing; expected a text", "input", code="missing_field")
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    turns: list[dict[str, Any]] = []
    for number, one in enumerate(fields.items("input", max_items=8192) or []):
        item = RequestParser(one, f"input[{number}]")
        turn = _turn(item)
        item.text("id")
        item.text("status")
        item.ignore("phase", _NOT_READ)
        item.finish()
        _append(turns, turn)
    # Where reasoning is all of a turn, its content is empty.
    return [{"content": "", **turn} if "reasoning" in turn else turn for turn in turns]


def _append(turns: list[dict[str, Any]], turn: dict[str, Any]) -> None:
    """Append a turn; what an answer consists of becomes one."""
    last = turns[-1] if turns else {}
    is_same = last.get("role") == turn["role"] == "assistant"
    if not is_same or ("content" in last and "content" in turn) or "reasoning" in turn:
        turns.append(turn)
        return
    calls = [*last.get("tool_calls", ()), *turn.get("tool_calls", ())]
    turns[-1] = {**last, **turn, **({"tool_calls": calls} if calls else {})}


def _turn(item: RequestParser) -> dict[str, Any]:
    kind = item.raw("type") or "message"
    if kind == "message":
        return {"role": item.raw("role"), "content": _content(item, "content")}
    if kind == "function_call":
        function = {"name": item.text("name"), "arguments": item.text("arguments")}
        call: dict[str, Any] = {
            "id": item.text("call_id"),
            "type": "function",
            "function": function,
        }
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        content = _content(item, "output")
        return {"role": "tool", "tool_call_id": item.text("call_id"), "content": content}
    if kind == "reasoning":
        item.raw("summary")
        item.ignore("encrypted_content", "reasoning is not encrypted")
        parts = item.items("content", max_items=1024) or []
        texts = [one.get("text") for one in parts if isinstance(one, dict)]
        return {"role": "assistant", "reasoning": "".join(map(str, texts))}
    message = f"{item.path('type')} is {kind!r:.40}, which is not supported"
    raise invalid(message, item.path("type"), code="unsupported_field")


def _content(item: RequestParser, name: str) -> Any:
    """Return a content as chats have it."""
    found = item.raw(name)
    if not isinstance(found, list):
        return item.text(name)
    parts: list[dict[str, Any]] = []
    for number, one in enumerate(found):
        part = RequestParser(one, f"{item.path(name)}[{number}]")
        kind = part.raw("type")
        if kind in _TEXTS:
            field = "refusal" if kind == "refusal" else "text"
            parts.append({"type": "text", "text": part.text(field)})
            for beside in ("annotations", "logprobs"):
                part.raw(beside)
        elif kind == "input_image" and part.raw("file_id") is None:
            image: dict[str, Any] = {"url": part.text("image_url"), "detail": part.text("detail")}
            parts.append({"type": "image_url", "image_url": image})
        else:
            message = f"{part.path('type')} is {kind!r:.40}, which is not supported"
            raise invalid(message, part.path("type"), code="unsupported_field")
        part.finish()
    return parts


@attrs.define(kw_only=True)
class ResponseJob:
    """A response that is made.

    Attributes:
        chat: What samples the answer.
        echoed: Fields that the response repeats.
        created: When it was begun, in seconds of Unix time.
    """

    names_events: ClassVar[bool] = True

    chat: ChatJob
    echoed: Mapping[str, Any]
    created: int = attrs.field(factory=lambda: int(time.time()))

    @property
    def request(self) -> ChatRequest:
        """What was asked, as a chat."""
        return self.chat.request

    @property
    def completions(self) -> CompletionSet:
        """Where tokens come from."""
        return self.chat.completions

    async def response(self) -> Response:
        """Return the full response."""
        pieces: list[Piece] = []
        async for arrived in self.completions.deltas():
            if arrived is not None:
                pieces += self.chat.choices[0].add(arrived[1])

        def made() -> Response:
            writer = OutputWriter(self.chat.id)
            for piece in merged(pieces):
                _ = [*writer.add(piece)]
            _ = [*writer.finish(self._status)]
            return JSONResponse(self._content(writer.items))

        return await self.chat.served.work.threads.run(made)

    async def events(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the response in pieces, and None where none came for long."""
        writer, number = OutputWriter(self.chat.id), 0

        def numbered(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            nonlocal number
            for event in events:
                yield {**event, "sequence_number": number}
                number += 1

        begun = self._content([])
        kinds = ("response.created", "response.in_progress")
        for event in numbered({"type": kind, "response": begun} for kind in kinds):
            yield event
        async for arrived in self.completions.deltas():
            if arrived is None:
                yield None
                continue
            for piece in self.chat.choices[0].add(arrived[1]):
                for event in numbered(writer.add(piece)):
                    yield event
        for event in numbered(writer.finish(self._status)):
            yield event
        ended = {"type": f"response.{self._status}", "response": self._content(writer.items)}
        for event in numbered(iter([ended])):
            yield event

    @property
    def _status(self) -> str:
        reason = self.chat.choices[0].finish_reason
        if reason is None:
            return "in_progress"
        return "incomplete" if reason == "length" else "completed"

    def _content(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the response as it is now."""
        status = self._status
        is_cut = status == "incomplete"
        return {
            "id": self.chat.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.request.model or self.chat.served.name,
            "output": list(items),
            **self.echoed,
            "usage": None if status == "in_progress" else self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        found = self.chat.usage()
        thought = found.get("completion_tokens_details", {"reasoning_tokens": 0})
        return {
            "input_tokens": found["prompt_tokens"],
            "input_tokens_details": found["prompt_tokens_details"],
            "output_tokens": found["completion_tokens"],
            "output_tokens_details": thought,
            "total_tokens": found["total_tokens"],
        }


async def create_response(request: HttpRequest) -> Response:
    """Answer `POST /v1/responses`."""
    return await generate(request, read_response, start_response, id_prefix="resp")


async def start_response(
    served: ServedModel, request: ResponseRequest, identity: str, stats: RequestStats
) -> ResponseJob:
    """Return a response whose answer is being sampled.

    Raises:
        ApiError: It cannot be answered, or not now.
    """
    try:
        chat = await start_chat(served, request.chat, identity, stats)
    except ApiError as error:
        raise _named(error) from error
    return ResponseJob(chat=chat, echoed=request.echoed)
