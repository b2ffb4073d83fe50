"""The way of a POST request: body, request slot, parsed fields, work, response.

`generate` answers completions and chats, `answer` what one call of the model does, `compute` what
needs no model. Each takes these steps in this order; nothing calls back into an earlier one:

1. `Body.read`: the bytes arrive, within the limits of one body and of all bodies.
2. `RequestSlot`: the request counts among those that are answered, or is refused by 429 or 503.
3. `ServedModel.work.parse`: the bytes become JSON; then the API's module reads its fields.
4. The API's module starts the completions, which the engine samples; or a call is queued.
5. `StreamedJob.response` or an `EventStream` sends them; the slot is free after the last byte.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from axcore.serving.access import ABANDONED
from axcore.serving.api_error import ApiError, invalid
from axcore.serving.config import Limits
from axcore.serving.endpoint import AnyEndpoint
from axcore.serving.form import parse_form
from axcore.serving.metrics import RequestStats
from axcore.serving.request_body import Body
from axcore.serving.request_parser import RequestParser
from axcore.serving.responses import EventStream, StreamedJob, unless_abandoned
from axcore.serving.served import Served
from axcore.serving.served_model import ServedModel, draining


async def generate(
    request: HttpRequest,
    read: Callable[[Any, Limits], Any],
    start: Callable[[ServedModel, Any, str, RequestStats], Awaitable[StreamedJob]],
    *,
    id_prefix: str,
) -> Response:
    """Answer a request by sampled tokens.

    Args:
        request: The HTTP request.
        read: Returns the API's request from the content of a body.
        start: Starts its completions.
        id_prefix: The beginning of the response's id.
    """
    served, stats = served_model(request), request.state.stats
    # The body counts against the memory for bodies until its content is made of it.
    with Body(served.bodies) as body:
        await body.read(request)

        async def work() -> StreamedJob:
            content, size = await _parsed(served, body)
            # Many messages or a long list of tokens take a while to check: not in the event loop.
            content = _with_defaults(content, served)
            asked = await served.work.compute(partial(read, content, served.limits), size=size)
            return await start(served, asked, f"{id_prefix}-{request.state.request_id}", stats)

        # After the body has come: a slow sender takes no place among those that are answered.
        with RequestSlot(served) as slot:
            # Watched from here on: tokenizing and queueing
            # for a client that has left is work for nobody.
            job = await unless_abandoned(request, work)
            return _abandoned(request) if job is None else await slot.respond(request, job)


async def compute(
    request: HttpRequest,
    completion: Callable[[ServedModel, RequestParser], Awaitable[dict[str, Any]]],
) -> Response:
    """Answer a request for which the engine does nothing."""
    served = served_model(request)
    with Body(served.bodies) as body:
        await body.read(request)

        async def work() -> Response:
            content, size = await _parsed(served, body)
            fields = RequestParser(content)
            # Before any work: a wrong name costs nothing.
            served.adapter(fields.text("model"))  # refuses a name that nothing here has
            found = await completion(served, fields)
            return await served.work.compute(partial(JSONResponse, found), size=size)

        with RequestSlot(served):
            return await unless_abandoned(request, work) or _abandoned(request)


async def answer(request: HttpRequest, endpoint: AnyEndpoint) -> Response:
    """Answer a request by one call of the model."""
    served, stats = any_served(request), request.state.stats
    with Body(served.bodies, takes_form=endpoint.takes_form) as body:
        await body.read(request)

        async def work() -> Response:
            # In a function of its own: nothing of the body stays while the job waits.
            name, job = await _read_job(request, endpoint, body)
            stats.num_prompt_tokens = endpoint.num_tokens(job)
            result = await served.queue.compute(endpoint, job)

            def response() -> Response:
                found = endpoint.response(job, result, model=name or served.name)
                return PlainTextResponse(found) if isinstance(found, str) else JSONResponse(found)

            return await served.work.threads.run(response)

        with RequestSlot(served):
            return await unless_abandoned(request, work) or _abandoned(request)


async def _read_job(
    request: HttpRequest, endpoint: AnyEndpoint, body: Body
) -> tuple[str | None, Any]:
    """Return the model that a request names, and what is computed for it."""
    served = any_served(request)
    if endpoint.takes_form:
        parse = partial(parse_form, body.content, request.headers["content-type"])
        fields = RequestParser(await served.work.threads.run(parse), is_form=True)
    else:
        fields = RequestParser(await served.work.parse(body.content))
    name = fields.text("model")
    # Before any work: a wrong name costs nothing.
    served.check_name(name)
    if name not in (None, served.name, *served.aliases):
        message = f"{endpoint.path} is answered by {served.name} itself; {name!r:.80} is an adapter"
        raise invalid(message, "model")

    def read() -> Any:
        job = endpoint.read(fields)
        fields.finish()
        return job

    job = await served.work.threads.run(read)
    # Only now: until it is read, a file counts as much as the body that it came in.
    body.drop()
    return name, job


def served_model(request: HttpRequest) -> ServedModel:
    """Return the model of the application that a request for text came to."""
    served: ServedModel = request.app.state.served
    return served


def any_served(request: HttpRequest) -> Served:
    """Return the model of the application that a request came to, whatever it answers."""
    served: Served = request.app.state.served
    return served


class RequestSlot:
    """The place of one request among those that are answered, of which there is a limit.

    Args:
        served: The model, which counts them.

    Raises:
        ApiError: On entering: the server drains, or all slots are taken.
    """

    def __init__(self, served: Served) -> None:
        self._served, self._is_kept = served, False

    def __enter__(self) -> Self:
        served, wait = self._served, self._served.limits.retry_after_s
        if served.is_draining:
            raise draining(wait)
        most = served.limits.max_requests
        # On the event loop alone, so no lock: nothing
        # awaits between the comparison and the increment.
        if served.num_active_requests >= most:
            message = f"The server answers {most} requests, as many as it may."
            raise ApiError(429, message, code="too_many_requests", retry_after_s=wait)
        served.num_active_requests += 1
        return self

    def __exit__(self, *raised: object) -> None:
        if not self._is_kept:
            self._leave()

    async def respond(self, request: HttpRequest, job: StreamedJob) -> Response:
        """Return the response of a request; a stream keeps the slot until it ends."""
        if job.request.settings.is_streamed:
            # Starlette sends a stream after this function has returned, and the drain of a server
            # waits for `num_active_requests`: so the slot is left by the stream, not by `__exit__`.
            self._is_kept = True
            return EventStream(
                job.events(),
                job.completions,
                on_end=self._leave,
                names_events=job.names_events,
            )
        try:
            found = await unless_abandoned(request, job.response)
        finally:
            # Where the client left, its answers end; where all went well, this does nothing.
            job.completions.cancel()
        return _abandoned(request) if found is None else found

    def _leave(self) -> None:
        self._served.num_active_requests -= 1


async def _parsed(served: Served, body: Body) -> tuple[Any, int]:
    """Return the content of a body and its size, and free its bytes for other requests."""
    sent = body.content
    content = await served.work.parse(sent)
    # As soon as it is parsed, since both forms together take several times the body's size.
    body.drop()
    return content, len(sent)


def _with_defaults(content: Any, served: Served) -> Any:
    """Return a body with the server's values of fields that it leaves out, or has as null."""
    if not served.defaults or not isinstance(content, dict):
        return content
    return {**content, **{n: v for n, v in served.defaults.items() if content.get(n) is None}}


def _abandoned(request: HttpRequest) -> Response:
    """Return what a client that went away would get; only the access log sees it."""
    request.state.stats.is_abandoned = True
    return Response(status_code=ABANDONED)
