"""`ChatRequest`: the body of `/v1/chat/completions`."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import attrs
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from axcore.data.chat.parsers.formats import AnswerReader
from axcore.data.chat.parsers.pieces import BrokenCall, CallPart, Piece, Reasoning
from axcore.inference import CompletionDelta, CompletionStream, Request, SampledToken
from axcore.serving.answers import AnswerFormat
from axcore.serving.api_error import ApiError, invalid
from axcore.serving.chat_messages import read_messages
from axcore.serving.config import Limits
from axcore.serving.metrics import RequestStats
from axcore.serving.request_handler import generate
from axcore.serving.request_parser import RequestParser, say_ignored
from axcore.serving.request_settings import (
    MAX_LOGPROBS,
    Settings,
    read_settings,
)
from axcore.serving.responses import CompletionSet, GenerationJob
from axcore.serving.served_model import ServedModel
from axcore.serving.structured_outputs import read_response_format
from axcore.serving.tools import ToolChoice, forced_calls, read_tool_choice

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
        splits_reasoning: Whether reasoning is apart from the answer.
        includes_reasoning: Whether it is sent.
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
    splits_reasoning: bool
    includes_reasoning: bool
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
        splits_reasoning=fields.boolean("separate_reasoning", default=True),
        includes_reasoning=fields.boolean("include_reasoning", default=True),
        settings=read_settings(fields, limits),
    )
    if request.tool_choice.forced and request.grammar is not None:
        message = "tool_choice forces a call, and response_format wants another text; use one"
        raise invalid(message, "response_format")
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        fields.text(name)
    templates_write = "The chat template writes special tokens."
    fields.refuse("add_special_tokens", templates_write, harmless=(False,))
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


_SHOWN_LINES = re.compile(r"\n +\d+ \| ")
"""What begins the lines of a grammar that its error shows; the client did not write them."""


@attrs.define(kw_only=True)
class ChatChoice:
    """An answer as it grows.

    Args:
        reader: Finds reasoning and calls of tools in it.
        texts: Its text so far.
        reasonings: What it thought so far.
        calls: The parts of its calls so far, by their numbers.
        tokens: Its tokens, the end token included.
        finish_reason: Why it ended; None before.
        is_begun: Whether its role was sent.
    """

    reader: AnswerReader
    texts: list[str] = attrs.field(factory=list)
    reasonings: list[str] = attrs.field(factory=list)
    calls: dict[int, list[CallPart]] = attrs.field(factory=dict)
    tokens: list[SampledToken] = attrs.field(factory=list)
    finish_reason: str | None = None
    is_begun: bool = False

    def add(self, delta: CompletionDelta) -> list[Piece]:
        """Append what a step sampled; returns what is known by it."""
        found = self.reader.read(delta.text, len(delta.tokens))
        if delta.finish_reason is not None:
            found += self.reader.finish()
        for one in found:
            self._keep(one)
        self.tokens += delta.sampled
        if delta.finish_reason is not None:
            made_calls = self.calls and delta.finish_reason == "stop"
            self.finish_reason = "tool_calls" if made_calls else delta.finish_reason
        return found

    def _keep(self, piece: Piece) -> None:
        if isinstance(piece, str):
            self.texts.append(piece)
        elif isinstance(piece, Reasoning):
            self.reasonings.append(piece.text)
        elif isinstance(piece, CallPart):
            self.calls.setdefault(piece.number, []).append(piece)
        else:
            # A stream may have sent parts of it already; a full answer has it as text.
            self.calls.pop(piece.number, None)
            self.texts.append(piece.text)

    @property
    def written_calls(self) -> list[dict[str, Any]]:
        """The calls, as responses have them."""
        return [
            {
                "id": first.id,
                "type": "function",
                "function": {
                    "name": first.name,
                    "arguments": "".join(part.arguments for part in (first, *rest)),
                },
            }
            for first, *rest in self.calls.values()
        ]


def _change(piece: Piece) -> dict[str, Any]:
    """Return a piece of an answer as streams have it."""
    if isinstance(piece, Reasoning):
        return _reasoning(piece.text)
    if isinstance(piece, BrokenCall):
        return {"content": piece.rest}
    if isinstance(piece, str):
        return {"content": piece}
    function = {"arguments": piece.arguments}
    if piece.name is None:
        return {"tool_calls": [{"index": piece.number, "function": function}]}
    named = {"name": piece.name, **function}
    call = {"index": piece.number, "id": piece.id, "type": "function", "function": named}
    return {"tool_calls": [call]}


def _reasoning(text: str) -> dict[str, Any]:
    """Return reasoning by both names that clients know."""
    return {"reasoning_content": text, "reasoning": text}


@attrs.define(kw_only=True)
class ChatJob(GenerationJob[ChatRequest, ChatChoice]):
    """A conversation that is answered.

    Attributes:
        splits_reasoning: Whether reasoning is read out of its answers.
    """

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    splits_reasoning: bool

    def add(self, number: int, delta: CompletionDelta) -> None:
        """Append a piece to an answer."""
        self.choices[number].add(delta)

    def changes(self, number: int, delta: CompletionDelta) -> Iterator[dict[str, Any]]:
        """Yield what a new piece adds to an answer, as streams have it."""
        choice = self.choices[number]
        found = [_change(one) for one in choice.add(delta) if self._is_shown(one)]
        if not choice.is_begun:
            found.insert(0, {"role": "assistant", "content": ""})
            choice.is_begun = True
        logprobs = self._logprobs(delta.sampled) if delta.sampled else None
        numbers = self._numbers(delta.sampled) if delta.sampled else {}
        if logprobs is not None or numbers:
            # They go with the last change that has text, not in a chunk of their own.
            found = found or [{}]
        for place, change in enumerate(found, start=1):
            own = {"index": number, "delta": change, "finish_reason": None, "logprobs": None}
            yield own | ({"logprobs": logprobs, **numbers} if place == len(found) else {})
        if choice.finish_reason is not None:
            reason = {"finish_reason": choice.finish_reason, "logprobs": None}
            yield {"index": number, "delta": {}, **reason}

    def _is_shown(self, piece: Piece) -> bool:
        return self.request.includes_reasoning or not isinstance(piece, Reasoning)

    def whole(self, number: int) -> dict[str, Any]:
        """Return an answer that has ended, as responses have it."""
        choice = self.choices[number]
        calls, text, thought = choice.written_calls, "".join(choice.texts), choice.reasonings
        message: dict[str, Any] = {"role": "assistant", "refusal": None}
        message["content"] = None if calls and not text.strip() else text
        if thought and self.request.includes_reasoning:
            message |= _reasoning("".join(thought))
        if calls:
            message["tool_calls"] = calls
        return {
            "index": number,
            "message": message,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finish_reason,
            **self._numbers(choice.tokens),
        }

    def of_prompt(self) -> dict[str, Any]:
        """Return the numbers and the log-probabilities of the prompt, where they are wanted."""
        settings, found = self.request.settings, dict[str, Any]()
        if settings.returns_tokens:
            found["prompt_token_ids"] = self.completions.completions[0].request.prompt
        if settings.num_prompt_logprobs is not None:
            found["prompt_logprobs"] = self.prompt_logprobs(0)
        return found

    def _numbers(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        if not self.request.settings.returns_tokens:
            return {}
        return {"token_ids": [token.id for token in tokens]}

    def usage(self) -> dict[str, Any]:
        """Return the numbers of tokens, those of reasoning too where there may be some."""
        found = super().usage()
        if self.splits_reasoning:
            num_tokens = sum(choice.reader.num_reasoning_tokens for choice in self.choices)
            found["completion_tokens_details"] = {"reasoning_tokens": num_tokens}
        return found

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        if self.request.num_logprobs is None:
            return None
        return self.served.texts.as_chat(self.listed(tokens))


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
    answer = AnswerFormat.of(
        served.parsers,
        served.tokenizer,
        template,
        choice,
        splits_reasoning=request.splits_reasoning and request.grammar is None,
    )
    grammar = request.grammar
    if choice.forced:  # whose schemas may be long
        write = partial(forced_calls, choice, answer.family, answer.special)
        grammar = await served.work.threads.run(write)
    values = {
        **_known_values(request.optional_template_values, template),
        **request.template_values,
    }
    tokens, inputs, text = await served.chat_prompt(
        request.messages,
        choice.tools,
        max_size=served.max_prompt_size(settings.truncates_to, request.max_tokens),
        **values,
    )
    if inputs and settings.returns_tokens:
        raise invalid("return_token_ids is for conversations of text alone", "return_token_ids")
    prefill = _prefill(request)
    stats.num_prompt_tokens = len(tokens)
    requests = [
        settings.request(
            served.tokenizer,
            prompt=tokens,
            max_tokens=served.max_new_tokens(tokens, request.max_tokens),
            seed=seed,
            num_logprobs=request.num_logprobs,
            visible=answer.visible_tokens,
            stops=answer.stops,
            adapter=adapter,
            grammar=grammar,
            inputs=inputs,
            # One by one, as it is counted which are of reasoning.
            splits_deltas=answer.reasoning is not None,
        )
        for seed in served.seeds.of(settings)
    ]
    return ChatJob(
        served=served,
        request=request,
        id=identity,
        splits_reasoning=answer.reasoning is not None,
        choices=[ChatChoice(reader=answer.reader(text, prefill)) for _ in requests],
        completions=CompletionSet(
            await _submit(served, requests, is_forced=bool(choice.forced)), stats
        ),
    )


def _prefill(request: ChatRequest) -> str:
    """Return what the answer begins with, where the last message is continued."""
    is_continued = request.template_values.get("continue_final_message", False)
    content = request.messages[-1]["content"] if is_continued else ""
    return content if isinstance(content, str) else ""


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
