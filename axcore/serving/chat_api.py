"""`ChatRequest`: the body of `/v1/chat/completions`."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import attrs
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from axcore.config.json_files import parse_json
from axcore.data.chat.tool_calls import ToolCall, ToolCallReader, special_marks
from axcore.inference import CompletionDelta, CompletionStream, Request, SampledToken
from axcore.serving.api_error import ApiError, invalid
from axcore.serving.config import Limits
from axcore.serving.inputs import ContentPart, read_part
from axcore.serving.metrics import RequestStats
from axcore.serving.request_handler import generate
from axcore.serving.request_parser import RequestParser, check_texts, say_ignored
from axcore.serving.request_settings import (
    MAX_LOGPROBS,
    Settings,
    read_response_format,
    read_settings,
)
from axcore.serving.responses import CompletionSet, GenerationJob
from axcore.serving.served_model import ServedModel
from axcore.serving.tools import (
    ToolChoice,
    call_reader,
    call_stops,
    forced_calls,
    read_tool_choice,
)

_MAX_MESSAGES = 4096
_ROLES = ("system", "developer", "user", "assistant", "tool")
_UNSUPPORTED = {
    "functions": "Use tools.",
    "function_call": "Use tool_choice.",
    "audio": "Answers are text.",
    "prediction": "Leave it out.",
    "web_search_options": "Bring what was found as a message.",
}
_IGNORED = {
    "store": "nothing is kept",
    "metadata": "nothing is kept",
    "service_tier": "there is one",
}
_OF_TEMPLATES = ("reasoning_effort", "verbosity")
"""RequestParser that chat templates may read."""

_BESIDE_TEXT = ("id", "timestamp", "cache_control", "annotations", "provider_specific_fields")
"""What clients write in addition to the text of a conversation, and no template reads."""

_TEXT_PARTS = ("text", "refusal")
"""Types of parts of a content, each with its text in a field of the same name."""

_NOT_READ = "no template reads it"


@attrs.frozen(kw_only=True)
class ChatRequest:
    """What answers a conversation.

    Args:
        model: Name of the model; None is the one that is served.
        messages: The turns, as templates read them.
        tool_choice: Functions that the model may or must call.
        template_values: What else the template reads.
        optional_template_values: What it may read, and what is ignored where it does not.
        max_tokens: Tokens of an answer at most; None is all that the model has room for.
        num_logprobs: Likeliest tokens that are listed with each one; None lists nothing.
        grammar: What answers must follow.
        settings: The rest.
    """

    model: str | None
    messages: tuple[dict[str, Any], ...]
    tool_choice: ToolChoice
    template_values: dict[str, Any]
    optional_template_values: dict[str, str]
    max_tokens: int | None
    num_logprobs: int | None
    grammar: Any
    settings: Settings


def read_chat(content: Any, limits: Limits) -> ChatRequest:
    """Return a request from its body.

    Raises:
        ApiError: A field is unknown, not supported, or has a value that cannot be used.
    """
    fields = RequestParser(content)
    request = ChatRequest(
        model=fields.text("model"),
        messages=read_messages(fields),
        tool_choice=read_tool_choice(fields),
        template_values={**_template_values(fields), **_prompt_end(fields)},
        optional_template_values={
            name: value for name in _OF_TEMPLATES if (value := fields.text(name)) is not None
        },
        max_tokens=_max_tokens(fields),
        num_logprobs=_num_logprobs(fields),
        grammar=read_response_format(fields),
        settings=read_settings(fields, limits),
    )
    if request.tool_choice.forced and request.grammar is not None:
        message = "tool_choice forces a call, and response_format wants another text; use one"
        raise invalid(message, "response_format")
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        fields.text(name)
    for name, why in _UNSUPPORTED.items():
        fields.refuse(name, why)
    fields.refuse("modalities", "Answers are text.", harmless=(["text"],))
    for name, why in _IGNORED.items():
        fields.ignore(name, why)
    fields.finish()
    return request


def _max_tokens(fields: RequestParser) -> int | None:
    limits = {"min_value": 1, "max_value": 2**31 - 1}
    found = fields.integer("max_completion_tokens", **limits)
    return fields.integer("max_tokens", **limits) if found is None else found


def _num_logprobs(fields: RequestParser) -> int | None:
    is_wanted = fields.boolean("logprobs")
    number = fields.integer("top_logprobs", min_value=0, max_value=MAX_LOGPROBS)
    if number is not None and not is_wanted:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    return (number or 0) if is_wanted else None


def _template_values(fields: RequestParser) -> dict[str, Any]:
    found, path = fields.raw("chat_template_kwargs"), fields.path("chat_template_kwargs")
    if found is None:
        return {}
    taken = {"messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"}
    if not isinstance(found, dict) or taken & set(found):
        names = ", ".join(sorted(taken))
        raise invalid(f"{path} is not an object of values, those of {names} left out", path)
    return found


def _prompt_end(fields: RequestParser) -> dict[str, Any]:
    """Return how the prompt ends, where that is not the request for a new answer."""
    continues = fields.boolean("continue_final_message")
    asks = fields.boolean("add_generation_prompt", default=not continues)
    if continues and asks:
        message = "continue_final_message continues the last message; add_generation_prompt asks"
        raise invalid(f"{message} for another one", "continue_final_message")
    found: dict[str, Any] = {} if asks else {"add_generation_prompt": False}
    return {**found, "continue_final_message": True} if continues else found


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


_SHOWN_LINES = re.compile(r"\n +\d+ \| ")
"""What begins the lines of a grammar that its error shows; the client did not write them."""


@attrs.define(kw_only=True)
class ChatChoice:
    """An answer as it grows.

    Args:
        reader: Finds calls of tools in it.
        text: Its text so far.
        calls: The calls so far.
        tokens: Its tokens, the end token included.
        finish_reason: Why it ended; None before.
        is_begun: Whether its role was sent.
    """

    reader: ToolCallReader
    text: str = ""
    calls: list[ToolCall] = attrs.field(factory=list)
    tokens: list[SampledToken] = attrs.field(factory=list)
    finish_reason: str | None = None
    is_begun: bool = False

    def add(self, delta: CompletionDelta) -> list[str | ToolCall]:
        """Append a piece; returns the text and the calls that it completes."""
        found = self.reader.read(delta.text)
        if delta.finish_reason is not None:
            found += self.reader.finish()
        self.text += "".join(one for one in found if isinstance(one, str))
        self.calls += [one for one in found if isinstance(one, ToolCall)]
        self.tokens += delta.sampled
        if delta.finish_reason is not None:
            made_calls = self.calls and delta.finish_reason == "stop"
            self.finish_reason = "tool_calls" if made_calls else delta.finish_reason
        return found


class ChatJob(GenerationJob[ChatRequest, ChatChoice]):
    """A conversation that is answered."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def add(self, number: int, delta: CompletionDelta) -> None:
        """Append a piece to an answer."""
        self.choices[number].add(delta)

    def changes(self, number: int, delta: CompletionDelta) -> Iterator[dict[str, Any]]:
        """Yield what a new piece adds to an answer, as streams have it."""
        for change, logprobs, reason in self._deltas(self.choices[number], delta):
            choice = {"index": number, "delta": change, "finish_reason": reason}
            yield {**choice, "logprobs": logprobs}

    def _deltas(
        self, choice: ChatChoice, delta: CompletionDelta
    ) -> list[tuple[dict[str, Any], dict[str, Any] | None, str | None]]:
        """Return what a piece adds to a choice, as several changes."""
        num_calls = len(choice.calls)
        found: list[tuple[dict[str, Any], dict[str, Any] | None, str | None]] = []
        for one in choice.add(delta):
            if isinstance(one, str):
                found.append(({"content": one}, None, None))
            else:
                found.append(({"tool_calls": [one.as_json(num_calls)]}, None, None))
                num_calls += 1
        if not choice.is_begun:
            found.insert(0, ({"role": "assistant", "content": ""}, None, None))
            choice.is_begun = True
        logprobs = self._logprobs(delta.sampled) if delta.sampled else None
        if logprobs is not None:
            # Log-probabilities go with the last change that has text, not in a chunk of their own.
            change = found.pop()[0] if found else {}
            found.append((change, logprobs, None))
        if choice.finish_reason is not None:
            found.append(({}, None, choice.finish_reason))
        return found

    def whole(self, number: int) -> dict[str, Any]:
        """Return an answer that has ended, as responses have it."""
        choice = self.choices[number]
        message: dict[str, Any] = {"role": "assistant", "refusal": None}
        message["content"] = None if choice.calls and not choice.text.strip() else choice.text
        if choice.calls:
            calls = [call.as_json(index) for index, call in enumerate(choice.calls)]
            message["tool_calls"] = [
                {name: value for name, value in call.items() if name != "index"} for call in calls
            ]
        return {
            "index": number,
            "message": message,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        if self.request.num_logprobs is None:
            return None
        return self.served.texts.as_chat(tokens)


async def chat_completions(request: HttpRequest) -> Response:
    """Answer `POST /v1/chat/completions`."""
    return await generate(request, read_chat, start_chat, id_prefix="chatcmpl")


async def start_chat(
    served: ServedModel, request: ChatRequest, identity: str, stats: RequestStats
) -> ChatJob:
    """Return a conversation whose answers are being sampled.

    Raises:
        ApiError: It cannot be answered, or not now.
    """
    adapter, settings = served.adapter(request.model), request.settings
    choice, template = request.tool_choice, served.template_for(request.tool_choice)
    special = special_marks(served.tokenizer)
    grammar = request.grammar
    if choice.forced:  # whose schemas may be long
        write = partial(forced_calls, choice, template, special)
        grammar = await served.work.threads.run(write)
    values = {
        **_known_values(request.optional_template_values, template),
        **request.template_values,
    }
    tokens, inputs = await served.chat_prompt(request.messages, choice.tools, **values)
    stats.num_prompt_tokens = len(tokens)
    requests = [
        Request(
            prompt=tokens,
            max_tokens=served.max_new_tokens(tokens, request.max_tokens),
            sampling=settings.sampling,
            seed=seed,
            stop=(*settings.stop, *call_stops(choice, template, special)),
            num_logprobs=request.num_logprobs,
            priority=settings.priority,
            adapter=adapter,
            grammar=grammar,
            ignores_end=settings.ignores_end,
            inputs=inputs,
        )
        for seed in served.seeds.of(settings)
    ]
    return ChatJob(
        served=served,
        request=request,
        id=identity,
        choices=[ChatChoice(reader=call_reader(choice, template, special)) for _ in requests],
        completions=CompletionSet(
            await _submit(served, requests, is_forced=bool(choice.forced)), stats
        ),
    )


def _known_values(wishes: dict[str, str], template: str | None) -> dict[str, str]:
    """Return what a template reads of what it may read; the rest is ignored."""
    known = {name: value for name, value in wishes.items() if name in (template or "")}
    for name in wishes.keys() - known.keys():
        say_ignored(name, "the chat template does not read it")
    return known


async def _submit(
    served: ServedModel, requests: Sequence[Request], *, is_forced: bool
) -> list[CompletionStream]:
    """Return answers; what is wrong with the grammar of a forced call is wrong with the tools."""
    try:
        return await served.submit(requests)
    except ApiError as error:
        if not is_forced or error.param != "response_format":
            raise
        why = _SHOWN_LINES.split(error.message)[0]
        raise invalid(f"no call of these tools can be forced: {why}", "tools") from error
