"""`Endpoints`: what a server answers at each path."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from axcore.serving.answering import unless_abandoned
from axcore.serving.api_error import ENGINE_FAILED, ApiError, invalid
from axcore.serving.body import Body
from axcore.serving.chat_request import read_chat, read_messages
from axcore.serving.chats import ChatJob, begin_chat
from axcore.serving.completion_request import read_completion, read_prompt, read_prompt_options
from axcore.serving.completions import CompletionJob, begin_completion
from axcore.serving.event_stream import EventStream
from axcore.serving.fields import Fields
from axcore.serving.gate import ABANDONED
from axcore.serving.limits import Limits
from axcore.serving.metrics import ServerMetrics
from axcore.serving.served_model import ServedModel, draining

_LETTERS_A_TOKEN = 4
"""What a token counts as where texts are measured by their letters."""

_MAX_DETOKENIZED = 1 << 17
"""Tokens that `/detokenize` reads where the model's length is less: the library lets nothing else
run while it decodes."""

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Endpoints:
    """Answers requests by a model.

    Args:
        served: The model.
        metrics: What `/metrics` shows.
    """

    def __init__(self, served: ServedModel, metrics: ServerMetrics) -> None:
        self.served, self.metrics = served, metrics

    async def completions(self, request: HttpRequest) -> Response:
        """Continues texts."""
        return await self._answer(request, read_completion, begin_completion, "cmpl")

    async def chat_completions(self, request: HttpRequest) -> Response:
        """Answers a conversation."""
        return await self._answer(request, read_chat, begin_chat, "chatcmpl")

    async def tokenize(self, request: HttpRequest) -> Response:
        """Returns the tokens of a text, or of a conversation."""
        return await self._short(request, self._tokens)

    async def detokenize(self, request: HttpRequest) -> Response:
        """Returns the text of tokens."""
        return await self._short(request, self._text)

    async def models(self, request: HttpRequest) -> Response:
        """Lists the model and its adapters."""
        names = (self.served.name, *self.served.adapters)
        return JSONResponse({"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, request: HttpRequest) -> Response:
        """Describes one model."""
        name = request.path_params["name"]
        self.served.adapter(name)
        return JSONResponse(self._model(name))

    async def health(self, request: HttpRequest) -> Response:
        """Says that the process answers, and that its engine can, or some of its replicas."""
        self._check_engine()
        failed = self._failed_replicas()
        return JSONResponse({"status": "degraded" if failed else "ok", **failed})

    async def ready(self, request: HttpRequest) -> Response:
        """Says whether requests are taken."""
        if self.served.is_draining:
            raise draining(self.served.limits.retry_after_s)
        self._check_engine()
        answer = {"status": "ready", "model": self.served.name, **self._failed_replicas()}
        return JSONResponse(answer)

    async def prometheus(self, request: HttpRequest) -> Response:
        """Returns the figures of the server and its engine."""
        return Response(self.metrics.text(), headers={"content-type": _METRICS_TYPE})

    async def stats(self, request: HttpRequest) -> Response:
        """Returns what the page shows: the engine's figures, and the model's."""
        served = self.served
        return JSONResponse(
            {
                "model": served.name,
                "step": served.step,
                "max_length": served.max_length,
                "has_chat": served.has_chat,
                **attrs.asdict(served.engine.stats()),
            }
        )

    async def _answer(
        self,
        request: HttpRequest,
        read: Callable[[Any, Limits], Any],
        begin: Callable[..., Awaitable[CompletionJob | ChatJob]],
        kind: str,
    ) -> Response:
        """Answers a request by tokens that are drawn.

        Args:
            request: The request.
            read: Reads its body.
            begin: Begins its answers.
            kind: What its id begins with.
        """
        served, figures = self.served, request.state.figures
        with Body(served.bodies) as body:
            await body.read(request)

            async def start() -> CompletionJob | ChatJob:
                content, size = await self._parsed(body)
                asked = partial(read, content, served.limits)
                found = await served.work.compute(asked, size=size)
                return await begin(served, found, f"{kind}-{request.state.request_id}", figures)

            with self._room() as room:
                job = await unless_abandoned(request, start)
                return abandoned(request) if job is None else await room.answer(request, job)

    async def _short(
        self, request: HttpRequest, answer: Callable[[Fields], Awaitable[dict[str, Any]]]
    ) -> Response:
        """Answers a request for which the engine does nothing."""
        served = self.served
        with Body(served.bodies) as body:
            await body.read(request)

            async def work() -> Response:
                content, size = await self._parsed(body)
                fields = Fields(content)
                served.adapter(fields.text("model"))
                found = await answer(fields)
                return await served.work.compute(partial(JSONResponse, found), size=size)

            with self._room():
                return await unless_abandoned(request, work) or abandoned(request)

    async def _parsed(self, body: Body) -> tuple[Any, int]:
        """Returns what a body says, and its bytes, which are dropped."""
        sent = body.content
        content = await self.served.work.parse(sent)
        body.drop()
        return content, len(sent)

    async def _tokens(self, fields: Fields) -> dict[str, Any]:
        """Returns the tokens of what a request to `/tokenize` holds."""
        served = self.served
        if fields.raw("messages") is not None:
            messages = read_messages(fields)
            fields.finish()
            tokens = await served.chat_tokens(messages, None)
        else:
            text, options = read_prompt(fields), read_prompt_options(fields)
            fields.finish()
            tokens = await served.tokenized(text, options)
        return {"tokens": tokens, "count": len(tokens), "max_model_len": served.max_length}

    async def _text(self, fields: Fields) -> dict[str, Any]:
        """Returns the text of what a request to `/detokenize` holds.

        Raises:
            ApiError: It is no list of tokens of the vocabulary.
        """
        served, most = self.served, self.served.tokenizer.vocab_size
        tokens = fields.items("tokens", most=max(served.max_length, _MAX_DETOKENIZED))
        fields.finish()

        def decode() -> str:
            is_number = [type(token) is int and 0 <= token < most for token in tokens or ()]
            if tokens is None or not all(is_number):
                raise invalid(f"tokens is no list of numbers from 0 to {most - 1}", "tokens")
            return served.decode(tokens)

        size = _LETTERS_A_TOKEN * len(tokens or ())
        return {"prompt": await served.work.compute(decode, size=size)}

    def _check_engine(self) -> None:
        """Raises ApiError where a step failed: only another process can answer then."""
        if self.served.engine.error is not None:
            raise ApiError(503, ENGINE_FAILED, code="engine_error")

    def _failed_replicas(self) -> dict[str, int]:
        """Returns how many replicas failed, of how many; nothing where none did."""
        stats = self.served.engine.stats()
        if not stats.num_failed_replicas:
            return {}
        return {"replicas": stats.num_replicas, "failed_replicas": stats.num_failed_replicas}

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.served.created,
            "owned_by": "axcore",
            "root": self.served.name,
            "max_model_len": self.served.max_length,
            "step": self.served.step,
        }

    def _room(self) -> "_Room":
        """Returns the place of one more request.

        Raises:
            ApiError: The server ends, or answers as many as it may.
        """
        wait, most = self.served.limits.retry_after_s, self.served.limits.max_requests
        if self.served.is_draining:
            raise draining(wait)
        if self.served.num_answering >= most:
            message = f"The server answers {most} requests, as many as it may."
            raise ApiError(429, message, code="too_many_requests", retry_after_s=wait)
        return _Room(self)


class _Room:
    """The place of a request among those that are answered, left when its answer was sent."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints, self._is_kept = endpoints, False

    def __enter__(self) -> "_Room":
        self._endpoints.served.num_answering += 1
        return self

    def __exit__(self, *raised: object) -> None:
        if not self._is_kept:
            self.leave()

    def leave(self) -> None:
        """Gives the place to another request."""
        self._endpoints.served.num_answering -= 1

    async def answer(self, request: HttpRequest, job: CompletionJob | ChatJob) -> Response:
        """Returns the response of a request; that of a stream keeps the place until its end."""
        if job.request.settings.is_streamed:
            self._is_kept = True
            return EventStream(job.events(), job.answers, on_end=self.leave)
        try:
            found = await unless_abandoned(request, job.response)
        finally:
            job.answers.cancel()
        return abandoned(request) if found is None else found


def abandoned(request: HttpRequest) -> Response:
    """Returns what is sent to a client that went away, for the log alone."""
    request.state.figures.is_abandoned = True
    return Response(status_code=ABANDONED)
