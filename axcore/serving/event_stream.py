"""`EventStream`: server-sent events, which end when the client goes away."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from axcore.serving.answering import Answers, unless_abandoned
from axcore.serving.api_error import FAILED, ApiError

LOGGER = logging.getLogger("axcore.serving")
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
DONE = "[DONE]"


class EventStream(Response):
    """Sends each item as one event, then `[DONE]`; None becomes a comment.

    Args:
        items: What is sent, as JSON.
        answers: What the items are made of; cancelled when the client goes away.
        on_end: Called when nothing more is sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        items: AsyncIterator[dict[str, Any] | None],
        answers: Answers,
        *,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._items, self._answers, self._on_end = items, answers, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""

        async def work() -> bool:
            await self._send_all(send)
            return True

        try:
            if await unless_abandoned(HttpRequest(scope, receive), work) is None:
                self._answers.figures.is_abandoned = True
        finally:
            self._answers.cancel()
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        try:
            async for item in self._items:
                text = ": waiting\n\n" if item is None else event(json.dumps(item))
                await _send(send, text)
            await _send(send, event(DONE))
        except ApiError as error:
            await _send(send, event(json.dumps(error.content)))
        except Exception:  # the status was sent, so that an event is all that can say it
            LOGGER.exception("a stream could not be finished")
            await _send(
                send, event(json.dumps(ApiError(500, FAILED, code="internal_error").content))
            )
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(data: str) -> str:
    """Returns an event; JSON has no line ends, so it is one line."""
    return f"data: {data}\n\n"


async def _send(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
