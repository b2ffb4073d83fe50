"""`AccessMiddleware`: every request passes it: id, host name, API key, and a line in the log."""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from axcore.errors import ConfigError
from axcore.serving.api_error import ApiError
from axcore.serving.metrics import RequestStats, ServerMetrics
from axcore.serving.worker_pool import CLIENT

_VARIABLE = "AXCORE_API_KEYS"
"""Keys, with commas between them."""


# A typo such as an empty variable must not become a key;
# eight is not strength, only a sign that somebody chose it.
_LEAST = 8


class ApiKeys:
    """The keys of a server; without one, every client is served.

    Args:
        keys: Each 8 characters or more.

    Raises:
        ConfigError: One is too short, or could not be sent in a header.
    """

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        for key in keys:
            is_sendable = key.isascii() and key.isprintable() and " " not in key
            if len(key) < _LEAST or not is_sendable:
                raise ConfigError(
                    f"an API key has {len(key)} characters; expected {_LEAST} or more, of ASCII, "
                    "without a space",
                    hint='python -c "import secrets; print(secrets.token_urlsafe(32))" makes one',
                )
        # Digests alone: a dump of this process's memory or an error's locals show no key.
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """Raise ApiError 401 where a header brings none of the keys.

        The time that it takes says nothing about how much of a key was right.
        """
        if not self._digests:
            return
        if authorization is None:
            raise ApiError(
                401,
                "An API key is missing; send it as 'Authorization: Bearer KEY'.",
                code="missing_api_key",
            )
        kind, _, key = authorization.partition(" ")
        given = _digest(key.strip().encode("utf-8", "surrogateescape"))
        # A list, not a generator: all keys are compared,
        # so the time does not say which one was close.
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        if kind.lower() != "bearer" or not any(matches):
            raise ApiError(401, "The API key is not one of this server's.", code="invalid_api_key")


NO_KEYS = ApiKeys()
"""Lets everybody ask."""


def read_api_keys(file: str | None, environment: Mapping[str, str] = os.environ) -> ApiKeys:
    """Return the keys of a file, one a line, and of the environment.

    Raises:
        ConfigError: The file cannot be read, contains no key, or may be read by others.
    """
    named = [key.strip() for key in environment.get(_VARIABLE, "").split(",")]
    return ApiKeys(tuple(key for key in [*named, *_in_file(file)] if key))


def _in_file(name: str | None) -> list[str]:
    if name is None:
        return []
    path = Path(name).expanduser()
    try:
        # utf-8-sig, as editors on Windows put a mark before the first key.
        mode, lines = path.stat().st_mode, path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the API keys cannot be read: {error}", where="--api-key-file"
        ) from error
    # Like ssh: a key that other users of the machine can read is none.
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"others may read {name}, which holds API keys",
            where="--api-key-file",
            hint=f"chmod 600 {name}",
        )
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{name} contains no API key", where="--api-key-file", hint="one a line")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


LOGGER = logging.getLogger("axcore.serving.access")


# nginx's number for it; no client ever sees it.
ABANDONED = 499
"""The status in the log of a request whose client went away before the answer."""


# Balancers ask for these before they know any key. They say nothing but that the process lives.
_PUBLIC = ("/", "/health", "/ready")


_POLLED = ("/health", "/ready", "/metrics", "/stats")
"""Paths that programs ask for every second: their lines have the level DEBUG while all is well."""


# A client's id is written into the log, so no space and no line end may be in it.
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class AccessMiddleware:
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
        """Answer a request."""
        # lifespan and websockets have no headers to check.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, stats = HttpRequest(scope), RequestStats()
        identity = request_id(request.headers.get("x-request-id"))
        scope.setdefault("state", {}).update(request_id=identity, stats=stats)
        status = ABANDONED

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                # Seen here, as the application's own exception
                # handlers answer with statuses of theirs.
                status = message["status"]
                mark = (b"x-request-id", identity.encode())
                message = {**message, "headers": [*message["headers"], mark, *_HEADERS]}
            await send(message)

        # Before the check, so that a flood of refused requests shows as well.
        self._metrics.in_flight.inc()
        try:
            try:
                self._check(request)
                # A context variable: thread pools far below deal turns
                # out by client, and nothing between knows of HTTP.
                CLIENT.set(self._client(request))
            except ApiError as error:
                await error_response(error)(scope, receive, send_marked)
                return
            await self._app(scope, receive, send_marked)
        # Also where the task was cancelled because the
        # connection broke: every request leaves a line.
        finally:
            self._metrics.in_flight.dec()
            self._report(request, ABANDONED if stats.is_abandoned else status)

    def _check(self, request: HttpRequest) -> None:
        """Raise ApiError where a request may not come in."""
        # A page on the web may have its own name resolve to 127.0.0.1 (DNS rebinding), and
        # then reads answers of a local server as its own. The browser still sends that name.
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
        """Return who asks: whose key it is, or else from which address."""
        # By key where there are keys: many users may come from one address, as behind a proxy.
        key = request.headers.get("authorization") if self._keys else None
        return key or (request.client.host if request.client else "")

    def _report(self, request: HttpRequest, status: int) -> None:
        stats: RequestStats = request.state.stats
        seconds = time.monotonic() - stats.began
        path = request.scope["path"]
        self._metrics.add(self._counted_path(request.scope), status, stats, seconds)
        client = request.client.host if request.client else "-"
        words = [client, request.method, _printable(path), str(status), f"{seconds * 1e3:.0f}ms"]
        if stats.num_prompt_tokens:
            words.append(f"prompt={stats.num_prompt_tokens}")
            words.append(f"cached={stats.num_cached_tokens} tokens={stats.num_tokens}")
        if stats.first_token_s is not None:
            words.append(f"ttft={stats.first_token_s * 1e3:.0f}ms")
        if stats.finish_reasons:
            words.append("finish=" + ",".join(dict.fromkeys(stats.finish_reasons)))
        # A probe each second would hide everything else.
        level = logging.DEBUG if path in _POLLED and status < 400 else logging.INFO
        LOGGER.log(level, "%s id=%s", " ".join(words), request.state.request_id)

    def _counted_path(self, scope: Scope) -> str:
        """Return the path of a request's route; one word for all paths that have none."""
        # The route's pattern and not the path: a label for every
        # path that somebody invents would grow without end.
        matching = (one for one in self._routes if one.matches(scope)[0] is not Match.NONE)
        return next((one.path_format for one in matching), "other")


def error_response(error: ApiError) -> JSONResponse:
    """Return the response of an error."""
    return JSONResponse(error.content, error.status, headers=dict(error.headers))


def request_id(sent: str | None) -> str:
    """Return the id that a client sent, if it is a plain word; otherwise a new one."""
    return sent if sent and _ID.fullmatch(sent) else f"req-{secrets.token_hex(12)}"


def _host_name(header: str) -> str:
    """Return the name in a `Host` header, without its port."""
    # An IPv6 address is in brackets, and its own colons are not port.
    name = re.sub(r":\d+$", "", header.lower())
    return name.removeprefix("[").removesuffix("]")


def _printable(path: str) -> str:
    """Return a path that cannot forge a line of the log."""
    # Control characters, terminal escapes and spaces: a log is
    # read by people in terminals, and split at spaces by programs.
    return ascii(path[:200])[1:-1].replace(" ", "%20")
