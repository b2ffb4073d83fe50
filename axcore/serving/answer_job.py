"""`AnswerJob`: a request that is answered, whole or in pieces."""

import abc
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar, Generic, TypeVar

import attrs
from starlette.responses import JSONResponse, Response

from axcore.inference import Piece
from axcore.serving.answering import Answers
from axcore.serving.chat_request import ChatRequest
from axcore.serving.completion_request import CompletionRequest
from axcore.serving.served_model import ServedModel

Asked = TypeVar("Asked", bound=ChatRequest | CompletionRequest)
Growing = TypeVar("Growing")

_LETTERS_A_LOGPROB = 30
"""What the log-probability of a token is in JSON, about."""


@attrs.define(kw_only=True)
class AnswerJob(abc.ABC, Generic[Asked, Growing]):
    """A request that is answered.

    Attributes:
        kind: What the API calls a whole response.
        chunk_kind: What it calls a piece of one.
        served: The model.
        request: What was asked.
        id: What the response is called.
        choices: Its answers as they grow.
        answers: Where their tokens come from.
        created: When the answers were begun, in seconds of Unix time.
    """

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    served: ServedModel
    request: Asked
    id: str
    choices: list[Growing]
    answers: Answers
    created: int = attrs.field(factory=lambda: int(time.time()))

    async def response(self) -> Response:
        """Returns the whole response."""
        async for arrived in self.answers.pieces():
            if arrived is not None:
                self.add(*arrived)
        figures, num_logprobs = self.answers.figures, self.request.num_logprobs
        num_tokens = figures.num_tokens + figures.num_prompt_tokens * len(self.choices)
        size = num_tokens * (1 if num_logprobs is None else _LETTERS_A_LOGPROB * (1 + num_logprobs))
        return await self.served.work.compute(self._response, size=size)

    def _response(self) -> Response:
        found = [self.whole(number) for number in range(len(self.choices))]
        return JSONResponse({**self._head(self.kind), "choices": found, "usage": self.usage()})

    async def events(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yields the response in pieces, and None where none came for long."""
        head = self._head(self.chunk_kind)
        async for arrived in self.answers.pieces():
            if arrived is None:
                yield None
                continue
            for choice in self.changes(*arrived):
                yield {**head, "choices": [choice]}
        if self.request.settings.includes_usage:
            yield {**head, "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Returns the numbers of tokens."""
        figures = self.answers.figures
        prompt, drawn = figures.num_prompt_tokens, figures.num_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": drawn,
            "total_tokens": prompt + drawn,
            "prompt_tokens_details": {"cached_tokens": figures.num_cached_tokens},
        }

    @abc.abstractmethod
    def add(self, number: int, piece: Piece) -> None:
        """Appends a piece to an answer."""

    @abc.abstractmethod
    def whole(self, number: int) -> dict[str, Any]:
        """Returns an answer that has ended, as responses have it."""

    @abc.abstractmethod
    def changes(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yields what a new piece adds to an answer, as streams have it."""

    def _head(self, kind: str) -> dict[str, Any]:
        name = self.request.model or self.served.name
        return {"id": self.id, "object": kind, "created": self.created, "model": name}
