"""`Answers`: the answers to one request, read together and given up when nobody waits for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import attrs
from starlette.requests import Request as HttpRequest

from axcore.inference import Answer, EngineError, Piece, RequestError
from axcore.serving.api_error import ApiError, from_error

KEEP_ALIVE_S = 15.0
"""After so many seconds without a token a stream sends a comment, so that proxies keep it open."""

Result = TypeVar("Result")


@attrs.define
class RequestFigures:
    """What is measured of one request.

    Args:
        began: When it came, on the monotonic clock.
        first_token_s: Seconds to its first token; None before.
        last_token_s: Seconds to its newest token; None before.
        num_prompt_tokens: Tokens of its prompts.
        num_cached_tokens: Of those, tokens that another request had computed.
        num_tokens: Tokens of its answers so far.
        finish_reasons: Of each answer that ended.
        is_abandoned: Whether the client went away.
    """

    began: float = attrs.field(factory=time.monotonic)
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    finish_reasons: list[str] = attrs.field(factory=list)
    is_abandoned: bool = False

    def add(self, piece: Piece) -> None:
        """Counts a piece of an answer."""
        if piece.drawn:
            now = time.monotonic() - self.began
            self.first_token_s = now if self.first_token_s is None else self.first_token_s
            self.last_token_s = now
            self.num_tokens += len(piece.drawn)
        if piece.finish_reason is not None:
            self.finish_reasons.append(piece.finish_reason)


class Answers:
    """Answers that are drawn at the same time.

    Args:
        answers: What the engine returned.
        figures: What counts their tokens.
        keeps_tokens: Whether tokens are wanted; without, only the prompts are looked at.
    """

    def __init__(
        self, answers: Sequence[Answer], figures: RequestFigures, *, keeps_tokens: bool = True
    ) -> None:
        self.answers, self.figures, self._keeps_tokens = answers, figures, keeps_tokens

    def cancel(self) -> None:
        """Frees what the engine holds for them; those that ended stay as they are."""
        for answer in self.answers:
            answer.cancel()

    async def pieces(self) -> AsyncIterator[tuple[int, Piece] | None]:
        """Yields pieces with the number of their answer, and None where none came for long.

        Leaving the loop early cancels what is left.

        Raises:
            ApiError: The engine could not finish an answer.
        """
        arrived: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue()
        tasks = [
            asyncio.create_task(_forward(answer, number, arrived))
            for number, answer in enumerate(self.answers)
        ]
        num_open = len(tasks)
        try:
            while num_open:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        number, piece = await arrived.get()
                except TimeoutError:
                    yield None
                    continue
                if isinstance(piece, Exception):
                    raise piece
                piece = piece if self._keeps_tokens else _without_tokens(piece)
                self.figures.add(piece)
                if piece.finish_reason == "error":
                    raise engine_failed(self.answers[number])
                num_open -= piece.finish_reason is not None
                yield number, piece
            cached = sum(answer.num_cached_prompt_tokens for answer in self.answers)
            self.figures.num_cached_tokens = cached
        finally:
            for task in tasks:
                task.cancel()
            if num_open:
                self.cancel()


def _without_tokens(piece: Piece) -> Piece:
    """Returns a piece without its tokens, which are drawn as an engine draws one at least."""
    return Piece("", (), "length" if piece.finish_reason == "stop" else piece.finish_reason)


def engine_failed(answer: Answer) -> ApiError:
    """Returns the error of an answer that the engine could not finish."""
    error, adapter = answer.error, answer.request.adapter
    if isinstance(error, RequestError):  # a grammar that nothing can follow
        return from_error(error, "response_format")
    cause = None if error is None else error.__cause__
    # What a device says of its failure stays inside; why no replica took a request does not.
    why = cause.what if isinstance(cause, RequestError) else type(error).__name__
    of = "" if adapter is None else f" of {adapter!r}"
    hint = error.hint if isinstance(error, EngineError) else None
    said = f" {hint[:1].upper()}{hint[1:]}." if hint else ""
    message = f"The engine could not finish the answer{of}: {why}.{said}"
    param = None if adapter is None else "model"
    return ApiError(500, message, param=param, code="engine_error")


async def _forward(
    answer: Answer, number: int, arrived: asyncio.Queue[tuple[int, Piece | Exception]]
) -> None:
    try:
        async for piece in answer:
            arrived.put_nowait((number, piece))
    except Exception as error:  # whatever it is, the reader of the queue must not wait for ever
        arrived.put_nowait((number, error))


async def unless_abandoned(
    request: HttpRequest, work: Callable[[], Awaitable[Result]]
) -> Result | None:
    """Returns what work returns; None where the client goes away first, which cancels the work."""
    tasks: tuple[asyncio.Task[Result], asyncio.Task[None]] = (
        asyncio.ensure_future(work()),
        asyncio.create_task(_disconnected(request)),
    )
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
