"""The body of a request: JSON, or a form, of a limited size, which arrives in a limited time."""

import asyncio
from collections import Counter
from typing import Self

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from axcore.serving.api_error import ApiError
from axcore.serving.config import Limits
from axcore.serving.worker_pool import CLIENT, LONG_BODY

_JSON, _FORM = "application/json", "multipart/form-data"


class Bodies:
    """The long bodies that arrive, or wait to be parsed; all of them together have a limit.

    Without one, many clients fill the memory and the event loop by bodies that are all refused
    later. One beyond the limit waits, unread, so that its client is held up by TCP: a refusal would
    be lost where the client is still sending. Short bodies are always admitted.

    Args:
        limits: What a server accepts.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._num_bytes: Counter[str] = Counter()
        self._waiting: list[asyncio.Future[None]] = []
        self._refusal: ApiError | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all bodies that were admitted."""
        return self._num_bytes.total()

    @property
    def num_waiting(self) -> int:
        """Number of bodies that wait to be admitted."""
        return len(self._waiting)

    async def take(self, client: str, size: int) -> None:
        """Admit a body, once the limit allows it.

        Raises:
            ApiError: As `refuse` says.
        """
        while self._refusal is not None or not self._has_room(client, size):
            if self._refusal is not None:
                raise self._refusal
            left = asyncio.get_running_loop().create_future()
            self._waiting.append(left)
            await left
        # On the event loop alone and with no await since the
        # question, so two bodies cannot take the same bytes.
        self._num_bytes[client] += size

    def leave(self, client: str, size: int) -> None:
        """Release the bytes of a body; whoever waited longest looks first."""
        self._num_bytes[client] -= size
        self._num_bytes += Counter()  # drops clients that have none
        self._wake()

    def refuse(self, error: ApiError) -> None:
        """Raise an error where a body waits to be admitted, now and later: the server ends."""
        self._refusal = error
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        # All are woken and look again, in order: a large one that
        # does not fit yet must not keep a small one waiting.
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def _has_room(self, client: str, size: int) -> bool:
        """Whether a body can be admitted. A client has half of all, and always that of one body."""
        most = self.limits.max_bodies_bytes
        of_client, of_all = self._num_bytes[client], self.num_bytes
        # A client's first body is always admitted, or one
        # that is larger than its half could never be sent.
        return not (
            (of_client and of_client + size > most // 2) or (of_all and of_all + size > most)
        )


class Body:
    """The body of a request, with its share of the limit until it is dropped.

    Args:
        bodies: Those there are.
        takes_form: Whether it is a form with files.
    """

    def __init__(self, bodies: Bodies, *, takes_form: bool = False) -> None:
        self._bodies, self._client, self._room = bodies, CLIENT.get(), 0
        self._media_type = _FORM if takes_form else _JSON
        limits = bodies.limits
        self._max_bytes = limits.max_form_bytes if takes_form else limits.max_body_bytes
        self._content, self._is_waiting = bytearray(), False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.drop()

    @property
    def content(self) -> bytes:
        """What has arrived."""
        return bytes(self._content)

    def drop(self) -> None:
        """Leave its bytes, and their share of the limit, to others."""
        self._content = bytearray()
        if self._room:
            self._bodies.leave(self._client, self._room)
            self._room = 0

    async def read(self, request: HttpRequest) -> None:
        """Read the body of a request.

        Raises:
            ApiError: It is called something else than JSON or a form, is too long, or does not
                arrive; or the server reads too many others.
        """
        sent = request.headers.get("content-type", "")
        if sent.partition(";")[0].strip().lower() != self._media_type:
            # Such a request would otherwise reach a server on
            # this machine from any page that its user opens.
            # Browsers send other types across sites without asking the server first.
            message = f"content-type is {sent!r:.80}; expected {self._media_type}"
            is_form = self._media_type == _FORM
            hint = "-F file=@PATH sends a form" if is_form else f"add -H 'content-type: {_JSON}'"
            raise ApiError(415, f"{message}. With curl, {hint}.", code="unsupported_media_type")
        if self._media_type == _FORM:
            _check_same_site(request)
        seconds = self._bodies.limits.body_timeout_s
        try:
            async with asyncio.timeout(seconds):
                await self._read(request)
        except TimeoutError as error:
            # Who waited to be admitted is not to blame for the time, and may try again.
            if self._is_waiting:
                message = (
                    f"The server reads {self._bodies.num_bytes:,} bytes of other bodies, as many "
                    "as it may at a time, or half of them for one client."
                )
                wait = self._bodies.limits.retry_after_s
                raise ApiError(429, message, code="too_many_bytes", retry_after_s=wait) from error
            message = f"The body did not arrive within {seconds:g} seconds."
            raise ApiError(408, message, code="body_timeout") from error

    async def _read(self, request: HttpRequest) -> None:
        said = request.headers.get("content-length", "")
        # By what it says at first, so that one that is too long is refused before it is sent.
        await self._check(int(said) if said.isdigit() else 0)
        try:
            async for chunk in request.stream():
                self._content += chunk
                # Again with each piece: the header may have lied.
                await self._check(len(self._content))
        except ClientDisconnect as error:
            request.state.stats.is_abandoned = True
            raise ApiError(400, "The body ended too early.", code="incomplete_body") from error

    async def _check(self, size: int) -> None:
        """Check the length of the body, and admit it once it is a long one."""
        most = self._max_bytes
        if size > most:
            message = f"The body is too long; at most {most:,} bytes are accepted."
            raise ApiError(413, message, code="body_too_long")
        if size > LONG_BODY and not self._room:
            # One that does not say its length may become as long as any.
            room = most if self._content else size
            self._is_waiting = True
            await self._bodies.take(self._client, room)
            self._room, self._is_waiting = room, False


def _check_same_site(request: HttpRequest) -> None:
    """Refuse a form that a browser sends for a page of another site.

    Browsers send forms across sites without asking the server first, unlike JSON. They name the
    page's origin then, which other clients leave out.

    Raises:
        ApiError: It is of another site.
    """
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        message = f"The form is of a page of another site, {origin!r:.80}."
        raise ApiError(403, message, code="other_site")
