"""`Gate`: what every request passes: its id, its host, its key, and its line in the log."""

import logging
import re
import secrets
import time
from collections.abc import Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from axcore.serving.answering import RequestFigures
from axcore.serving.api_error import ApiError
from axcore.serving.api_keys import ApiKeys
from axcore.serving.metrics import ServerMetrics
from axcore.serving.work import CLIENT

LOGGER = logging.getLogger("axcore.serving.access")
ABANDONED = 499
"""The status in the log of a request whose client went away before the answer."""

_PUBLIC = ("/", "/health", "/ready")
_POLLED = ("/health", "/ready", "/metrics", "/stats")
"""Paths that programs ask for every second: their lines have the level DEBUG while all is well."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Gate:
    """Lets requests through to an application, and writes one line on each.

    Args:
        app: The application.
        keys: Who may ask.
        hosts: Names that requests may call the server; none allows all.
        metrics: What counts requests.
        routes: The application's. Requests are counted by their paths, so that no request, which
            may come without a key, adds to the paths that there are.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: ApiKeys,
        hosts: Sequence[str],
        metrics: ServerMetrics,
        routes: Sequence[Route],
    ) -> None:
        self._app, self._keys, self._metrics = app, keys, metrics
        self._routes = routes
        self._hosts = tuple(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, figures = HttpRequest(scope), RequestFigures()
        identity = request_id(request.headers.get("x-request-id"))
        scope.setdefault("state", {}).update(request_id=identity, figures=figures)
        status = ABANDONED

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                mark = (b"x-request-id", identity.encode())
                message = {**message, "headers": [*message["headers"], mark, *_HEADERS]}
            await send(message)

        self._metrics.in_flight.inc()
        try:
            try:
                self._check(request)
                CLIENT.set(self._client(request))
            except ApiError as error:
                await error_response(error)(scope, receive, send_marked)
                return
            await self._app(scope, receive, send_marked)
        finally:
            self._metrics.in_flight.dec()
            self._report(request, ABANDONED if figures.is_abandoned else status)

    def _check(self, request: HttpRequest) -> None:
        """Raises ApiError where a request may not come in."""
        host = _host_name(request.headers.get("host", ""))
        if self._hosts and host not in self._hosts:
            message = (
                f"This server is not called {host!r:.80}. Start it with --allowed-host to add a "
                "name."
            )
            raise ApiError(421, message, code="unknown_host")
        if request.scope["path"] not in _PUBLIC:
            self._keys.check(request.headers.get("authorization"))

    def _client(self, request: HttpRequest) -> str:
        """Returns who asks: whose key it is, or else from which address."""
        key = request.headers.get("authorization") if self._keys else None
        return key or (request.client.host if request.client else "")

    def _report(self, request: HttpRequest, status: int) -> None:
        figures: RequestFigures = request.state.figures
        seconds = time.monotonic() - figures.began
        path = request.scope["path"]
        self._metrics.add(self._counted_path(request.scope), status, figures, seconds)
        client = request.client.host if request.client else "-"
        words = [client, request.method, _printable(path), str(status), f"{seconds * 1e3:.0f}ms"]
        if figures.num_prompt_tokens:
            words.append(f"prompt={figures.num_prompt_tokens}")
            words.append(f"cached={figures.num_cached_tokens} tokens={figures.num_tokens}")
        if figures.first_token_s is not None:
            words.append(f"ttft={figures.first_token_s * 1e3:.0f}ms")
        if figures.finish_reasons:
            words.append("finish=" + ",".join(dict.fromkeys(figures.finish_reasons)))
        level = logging.DEBUG if path in _POLLED and status < 400 else logging.INFO
        LOGGER.log(level, "%s id=%s", " ".join(words), request.state.request_id)

    def _counted_path(self, scope: Scope) -> str:
        """Returns the path of a request's route; one word for all paths that have none."""
        matching = (one for one in self._routes if one.matches(scope)[0] is not Match.NONE)
        return next((one.path_format for one in matching), "other")


def error_response(error: ApiError) -> JSONResponse:
    """Returns the response of an error."""
    return JSONResponse(error.content, error.status, headers=dict(error.headers))


def request_id(sent: str | None) -> str:
    """Returns the id that a client sent, if it is a plain word; otherwise a new one."""
    return sent if sent and _ID.fullmatch(sent) else f"req-{secrets.token_hex(12)}"


def _host_name(header: str) -> str:
    """Returns the name in a `Host` header, without its port."""
    name = re.sub(r":\d+$", "", header.lower())
    return name.removeprefix("[").removesuffix("]")


def _printable(path: str) -> str:
    """Returns a path that cannot forge a line of the log."""
    return ascii(path[:200])[1:-1].replace(" ", "%20")
