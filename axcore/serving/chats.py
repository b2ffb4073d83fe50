"""`/v1/chat/completions`: answers to conversations."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import attrs

from axcore.inference import DrawnToken, Piece, Request
from axcore.serving.answer_job import AnswerJob
from axcore.serving.answering import Answers, RequestFigures
from axcore.serving.api_error import ApiError, invalid
from axcore.serving.chat_request import ChatRequest
from axcore.serving.fields import say_ignored
from axcore.serving.forced_calls import call_reader, call_stops, forced_calls, special_marks
from axcore.serving.served_model import ServedModel
from axcore.serving.tool_calls import ToolCall, ToolCallReader

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
    tokens: list[DrawnToken] = attrs.field(factory=list)
    finish_reason: str | None = None
    is_begun: bool = False

    def add(self, piece: Piece) -> list[str | ToolCall]:
        """Appends a piece; returns the text and the calls that it completes."""
        found = self.reader.read(piece.text)
        if piece.finish_reason is not None:
            found += self.reader.finish()
        self.text += "".join(one for one in found if isinstance(one, str))
        self.calls += [one for one in found if isinstance(one, ToolCall)]
        self.tokens += piece.drawn
        if piece.finish_reason is not None:
            made_calls = self.calls and piece.finish_reason == "stop"
            self.finish_reason = "tool_calls" if made_calls else piece.finish_reason
        return found


class ChatJob(AnswerJob[ChatRequest, ChatChoice]):
    """A conversation that is answered."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def add(self, number: int, piece: Piece) -> None:
        """Appends a piece to an answer."""
        self.choices[number].add(piece)

    def changes(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yields what a new piece adds to an answer, as streams have it."""
        for delta, logprobs, reason in self._deltas(self.choices[number], piece):
            choice = {"index": number, "delta": delta, "finish_reason": reason}
            yield {**choice, "logprobs": logprobs}

    def _deltas(
        self, choice: ChatChoice, piece: Piece
    ) -> list[tuple[dict[str, Any], dict[str, Any] | None, str | None]]:
        """Returns what a piece adds to a choice, as several changes."""
        num_calls = len(choice.calls)
        found: list[tuple[dict[str, Any], dict[str, Any] | None, str | None]] = []
        for one in choice.add(piece):
            if isinstance(one, str):
                found.append(({"content": one}, None, None))
            else:
                found.append(({"tool_calls": [one.as_json(num_calls)]}, None, None))
                num_calls += 1
        if not choice.is_begun:
            found.insert(0, ({"role": "assistant", "content": ""}, None, None))
            choice.is_begun = True
        logprobs = self._logprobs(piece.drawn) if piece.drawn else None
        if logprobs is not None:
            delta = found.pop()[0] if found else {}
            found.append((delta, logprobs, None))
        if choice.finish_reason is not None:
            found.append(({}, None, choice.finish_reason))
        return found

    def whole(self, number: int) -> dict[str, Any]:
        """Returns an answer that has ended, as responses have it."""
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

    def _logprobs(self, tokens: Sequence[DrawnToken]) -> dict[str, Any] | None:
        if self.request.num_logprobs is None:
            return None
        return self.served.texts.as_chat(tokens)


async def begin_chat(
    served: ServedModel, request: ChatRequest, identity: str, figures: RequestFigures
) -> ChatJob:
    """Returns a conversation whose answers are being drawn.

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
    values = {**_known_wishes(request.template_wishes, template), **request.template_values}
    tokens = await served.chat_tokens(request.messages, choice.tools, **values)
    figures.num_prompt_tokens = len(tokens)
    requests = [
        Request(
            prompt=tokens,
            max_tokens=served.answer_size(tokens, request.max_tokens),
            sampling=settings.sampling,
            seed=seed,
            stop=(*settings.stop, *call_stops(choice, template, special)),
            num_logprobs=request.num_logprobs,
            priority=settings.priority,
            adapter=adapter,
            grammar=grammar,
            ignores_end=settings.ignores_end,
        )
        for seed in served.seeds.of(settings)
    ]
    return ChatJob(
        served=served,
        request=request,
        id=identity,
        choices=[ChatChoice(reader=call_reader(choice, template, special)) for _ in requests],
        answers=await _submit(served, requests, figures=figures, is_forced=bool(choice.forced)),
    )


def _known_wishes(wishes: dict[str, str], template: str | None) -> dict[str, str]:
    """Return what a template reads of what it may read; the rest is ignored."""
    known = {name: value for name, value in wishes.items() if name in (template or "")}
    for name in wishes.keys() - known.keys():
        say_ignored(name, "the chat template does not read it")
    return known


async def _submit(
    served: ServedModel, requests: Sequence[Request], *, figures: RequestFigures, is_forced: bool
) -> Answers:
    """Returns answers; what is wrong with the grammar of a forced call is wrong with the tools."""
    try:
        return await served.submit(requests, figures)
    except ApiError as error:
        if not is_forced or error.param != "response_format":
            raise
        why = _SHOWN_LINES.split(error.message)[0]
        raise invalid(f"no call of these tools can be forced: {why}", "tools") from error
