"""Responses: the completions of one request, sent as one JSON object or as server-sent events."""

import abc
import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from axcore.inference import (
    CompletionDelta,
    CompletionStream,
    EngineError,
    RequestError,
    SampledToken,
)
from axcore.serving.api_error import FAILED, ApiError, from_error
from axcore.serving.metrics import RequestStats
from axcore.serving.request_settings import Settings
from axcore.serving.served_model import ServedModel

# Below the 30 s and 60 s after which usual proxies cut an idle connection.
_KEEP_ALIVE_S = 15.0
"""After so many seconds without a token a stream sends a comment, so that proxies keep it open."""

Result = TypeVar("Result")


class CompletionSet:
    """Answers that are sampled at the same time.

    Args:
        completions: What the engine returned.
        stats: What counts their tokens.
        keeps_tokens: Whether tokens are wanted; without, only the prompts are looked at.
    """

    def __init__(
        self,
        completions: Sequence[CompletionStream],
        stats: RequestStats,
        *,
        keeps_tokens: bool = True,
    ) -> None:
        self.completions, self.stats, self._keeps_tokens = completions, stats, keeps_tokens

    def cancel(self) -> None:
        """Free what the engine holds for them; those that ended stay as they are."""
        for completion in self.completions:
            completion.cancel()

    async def deltas(self) -> AsyncIterator[tuple[int, CompletionDelta] | None]:
        """Yield pieces with the number of their answer, and None where none came for long.

        Leaving the loop early cancels what is left.

        Raises:
            ApiError: The engine could not finish an answer.
        """
        # One queue for all answers, so that pieces are sent in the order in which they come.
        arrived: asyncio.Queue[tuple[int, CompletionDelta | Exception]] = asyncio.Queue()
        tasks = [
            asyncio.create_task(_forward(completion, number, arrived))
            for number, completion in enumerate(self.completions)
        ]
        num_open = len(tasks)
        try:
            while num_open:
                try:
                    # A timeout around `get` and not around the
                    # generator: cancelling a generator ends it.
                    async with asyncio.timeout(_KEEP_ALIVE_S):
                        number, delta = await arrived.get()
                except TimeoutError:
                    yield None
                    continue
                if isinstance(delta, Exception):
                    raise delta
                # Tokens were sampled although none was asked
                # for, since an engine always samples one.
                delta = delta if self._keeps_tokens else _without_tokens(delta)
                self.stats.add(delta)
                if delta.finish_reason == "error":
                    raise _engine_failed(self.completions[number])
                num_open -= delta.finish_reason is not None
                yield number, delta
            cached = sum(completion.num_cached_prompt_tokens for completion in self.completions)
            self.stats.num_cached_tokens = cached
        # Also where the consumer stops early, as when the client leaves;
        # an engine that is not asked to stop would sample to the end.
        finally:
            for task in tasks:
                task.cancel()
            # Where all ended there is nothing to cancel.
            if num_open:
                self.cancel()


def _without_tokens(delta: CompletionDelta) -> CompletionDelta:
    """Return a piece without its tokens, which are sampled as an engine samples one at least."""
    return CompletionDelta(
        "", (), "length" if delta.finish_reason == "stop" else delta.finish_reason
    )


def _engine_failed(completion: CompletionStream) -> ApiError:
    """Return the error of an answer that the engine could not finish."""
    error, adapter = completion.error, completion.request.adapter
    if isinstance(error, RequestError):  # a grammar that nothing can follow
        return from_error(error, "response_format")
    cause = None if error is None else error.__cause__
    # What a device says about its failure stays inside; why no replica took a request does not.
    why = cause.what if isinstance(cause, RequestError) else type(error).__name__
    of = "" if adapter is None else f" of {adapter!r}"
    hint = error.hint if isinstance(error, EngineError) else None
    said = f" {hint[:1].upper()}{hint[1:]}." if hint else ""
    message = f"The engine could not finish the answer{of}: {why}.{said}"
    param = None if adapter is None else "model"
    return ApiError(500, message, param=param, code="engine_error")


async def _forward(
    completion: CompletionStream,
    number: int,
    arrived: asyncio.Queue[tuple[int, CompletionDelta | Exception]],
) -> None:
    try:
        async for delta in completion:
            arrived.put_nowait((number, delta))
    except Exception as error:  # whatever it is, the reader of the queue must not wait for ever
        arrived.put_nowait((number, error))


async def unless_abandoned(
    request: HttpRequest, work: Callable[[], Awaitable[Result]]
) -> Result | None:
    """Return what work returns; None where the client goes away first, which cancels the work."""
    # Starlette does not cancel a handler when the client leaves; only its `receive` says so.
    tasks: tuple[asyncio.Task[Result], asyncio.Task[None]] = (
        asyncio.ensure_future(work()),
        asyncio.create_task(_disconnected(request)),
    )
    try:
        # Both may be done: then the answer counts.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        # Awaited, so that a cancelled task has run its `finally` before its slot is given away.
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(request: HttpRequest) -> None:
    # The body was read, so the next message is the end of the connection.
    while (await request.receive())["type"] != "http.disconnect":
        pass


class GenerationRequest(Protocol):
    """The fields that requests of both APIs have."""

    @property
    def model(self) -> str | None:
        """Name of the model or adapter; None for the model that is served."""
        ...

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to list for each token; None lists nothing."""
        ...

    @property
    def settings(self) -> Settings:
        """The fields of both APIs."""
        ...


RequestT = TypeVar("RequestT", bound=GenerationRequest)
ChoiceT = TypeVar("ChoiceT")

_LETTERS_A_LOGPROB = 30
"""What the log-probability of a token is in JSON, about."""


@attrs.define(kw_only=True)
class GenerationJob(abc.ABC, Generic[RequestT, ChoiceT]):
    """A request that is answered.

    Attributes:
        kind: What the API calls a full response.
        chunk_kind: What it calls a piece of one.
        served: The model.
        request: What was asked.
        id: What the response is called.
        choices: Its answers as they grow.
        completions: Where their tokens come from.
        created: When the answers were begun, in seconds of Unix time.
    """

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    names_events: ClassVar[bool] = False

    served: ServedModel
    request: RequestT
    id: str
    choices: list[ChoiceT]
    completions: CompletionSet
    created: int = attrs.field(factory=lambda: int(time.time()))

    async def response(self) -> Response:
        """Return the full response."""
        async for arrived in self.completions.deltas():
            if arrived is not None:
                self.add(*arrived)
        stats, num_logprobs = self.completions.stats, self.request.num_logprobs
        num_tokens = stats.num_tokens + stats.num_prompt_tokens * len(self.choices)
        size = num_tokens * (1 if num_logprobs is None else _LETTERS_A_LOGPROB * (1 + num_logprobs))
        return await self.served.work.compute(self._response, size=size)

    # A long answer with log-probabilities is megabytes of
    # JSON; made in the event loop, all streams would pause.
    def _response(self) -> Response:
        found = [{**self.whole(n), "index": index} for index, n in enumerate(self.returned())]
        content = {**self._head(self.kind), "choices": found, "usage": self.usage()}
        return JSONResponse({**content, **self.of_prompt()})

    def returned(self) -> Sequence[int]:
        """Return the numbers of the answers that are sent, all of which have ended."""
        return range(len(self.choices))

    async def events(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the response in pieces, and None where none came for long."""
        head, prompt = self._head(self.chunk_kind), self.of_prompt()
        async for arrived in self.completions.deltas():
            if arrived is None:
                yield None
                continue
            for choice in self.changes(*arrived):
                yield {**head, "choices": [choice], **prompt}
                prompt = {}
        if self.request.settings.includes_usage:
            yield {**head, "choices": [], "usage": self.usage()}

    def of_prompt(self) -> dict[str, Any]:
        """Return what a response has of its prompt, and a stream with its first event."""
        return {}

    def usage(self) -> dict[str, Any]:
        """Return the numbers of tokens."""
        stats = self.completions.stats
        prompt, sampled = stats.num_prompt_tokens, stats.num_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": {"cached_tokens": stats.num_cached_tokens},
        }

    def listed(self, tokens: Sequence[SampledToken]) -> Sequence[SampledToken]:
        """Return tokens with as many likeliest ones as log-probabilities list of each."""
        most = self.request.num_logprobs or 0
        # The prompt's may list more, and an engine lists as many at all places.
        if self.request.settings.num_prompt_logprobs is None:
            return tokens
        return [attrs.evolve(one, top_logprobs=one.top_logprobs[:most]) for one in tokens]

    def prompt_logprobs(self, number: int) -> list[Any]:
        """Return the log-probabilities of a prompt, as vLLM has them."""
        stream, most = self.completions.completions[number], self.request.settings
        none = (None,) * len(stream.request.prompt)
        return self.served.texts.as_prompt(
            stream.request.prompt,
            stream.prompt_logprobs or none,
            stream.prompt_top_logprobs or none,
            most.num_prompt_logprobs or 0,
        )

    @abc.abstractmethod
    def add(self, number: int, delta: CompletionDelta) -> None:
        """Append a piece to an answer."""

    @abc.abstractmethod
    def whole(self, number: int) -> dict[str, Any]:
        """Return an answer that has ended, as responses have it."""

    @abc.abstractmethod
    def changes(self, number: int, delta: CompletionDelta) -> Iterator[dict[str, Any]]:
        """Yield what a new piece adds to an answer, as streams have it."""

    def _head(self, kind: str) -> dict[str, Any]:
        name = self.request.model or self.served.name
        return {"id": self.id, "object": kind, "created": self.created, "model": name}


class StreamedJob(Protocol):
    """A request that is answered, as the server sends it.

    Attributes:
        names_events: Whether events of a stream have their type as a name, and no `[DONE]` follows.
    """

    names_events: ClassVar[bool]

    @property
    def request(self) -> GenerationRequest:
        """What was asked."""
        ...

    @property
    def completions(self) -> CompletionSet:
        """Where tokens come from."""
        ...

    async def response(self) -> Response:
        """Return the full response."""
        ...

    def events(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the response in pieces, and None where none came for long."""
        ...


LOGGER = logging.getLogger("axcore.serving")
# nginx buffers answers by default, and would send a stream in one piece at its end.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
DONE = "[DONE]"


class EventStream(Response):
    """Sends each item as one event, then `[DONE]`; None becomes a comment.

    Args:
        items: What is sent, as JSON.
        completions: What the items are made of; cancelled when the client goes away.
        on_end: Called when nothing more is sent.
        names_events: See `StreamedJob`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        items: AsyncIterator[dict[str, Any] | None],
        completions: CompletionSet,
        *,
        on_end: Callable[[], None],
        names_events: bool = False,
    ) -> None:
        super().__init__(headers=_HEADERS)
        # Response has set it to 0, and a stream's length is not known.
        del self.headers["content-length"]
        self._items, self._completions, self._on_end = items, completions, on_end
        self._names_events = names_events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""

        async def work() -> bool:
            await self._send_all(send)
            return True

        # Watched all the way: a client that leaves in the
        # middle of a stream should cost no more tokens.
        try:
            if await unless_abandoned(HttpRequest(scope, receive), work) is None:
                self._completions.stats.is_abandoned = True
        finally:
            self._completions.cancel()
            # In `finally`, or a broken connection would keep its
            # slot for ever, and the drain would wait for it.
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        try:
            async for item in self._items:
                await _send(send, ": waiting\n\n" if item is None else self._event(item))
            if not self._names_events:
                await _send(send, event(DONE))
        except ApiError as error:
            # After the status has gone out, an event is the only way to
            # report an error; clients of this API look for `error` in it.
            await _send(send, self._failure(error))
        except Exception:  # the status was sent, so that an event is all that can say it
            LOGGER.exception("a stream could not be finished")
            await _send(send, self._failure(ApiError(500, FAILED, code="internal_error")))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _event(self, item: dict[str, Any]) -> str:
        name = f"event: {item['type']}\n" if self._names_events else ""
        return name + event(json.dumps(item))

    def _failure(self, error: ApiError) -> str:
        if not self._names_events:
            return event(json.dumps(error.content))
        said = {"code": error.code, "message": error.message, "param": error.param}
        return self._event({"type": "error", **said})


def event(data: str) -> str:
    """Return an event; JSON has no line ends, so it is one line."""
    return f"data: {data}\n\n"


async def _send(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
