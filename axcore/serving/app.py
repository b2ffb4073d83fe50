"""`serving_app`: the paths of a server, as an ASGI application."""

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from axcore.serving.api_error import FAILED, ApiError
from axcore.serving.api_keys import NO_KEYS, ApiKeys
from axcore.serving.endpoints import Endpoints
from axcore.serving.gate import Gate, error_response
from axcore.serving.metrics import ServerMetrics
from axcore.serving.page import page
from axcore.serving.served_model import ServedModel


def serving_app(
    served: ServedModel,
    *,
    keys: ApiKeys = NO_KEYS,
    hosts: Sequence[str] = (),
) -> Starlette:
    """Returns the application that answers requests by a model.

    Args:
        served: The model.
        keys: Who may ask; by default everybody.
        hosts: Names that requests may call the server; by default all.
    """
    metrics = ServerMetrics(served)
    endpoints = Endpoints(served, metrics)
    routes = _routes(endpoints)
    gate = Middleware(Gate, keys=keys, hosts=hosts, metrics=metrics, routes=routes)
    return Starlette(
        routes=routes,
        middleware=[gate],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, 500: _failed},
    )


def _routes(endpoints: Endpoints) -> list[Route]:
    asked: list[tuple[str, Any]] = [
        ("/", page),
        ("/health", endpoints.health),
        ("/ready", endpoints.ready),
        ("/metrics", endpoints.prometheus),
        ("/stats", endpoints.stats),
        ("/v1/models", endpoints.models),
        ("/v1/models/{name:path}", endpoints.model),
    ]
    sent: list[tuple[str, Any]] = [
        ("/v1/completions", endpoints.completions),
        ("/v1/chat/completions", endpoints.chat_completions),
        ("/tokenize", endpoints.tokenize),
        ("/detokenize", endpoints.detokenize),
    ]
    routes = [Route(path, function, methods=["GET"]) for path, function in asked]
    return [*routes, *(Route(path, function, methods=["POST"]) for path, function in sent)]


async def _api_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    """Returns Starlette's own errors, 404 and 405, in the same shape."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    said = {
        404: f"There is nothing at {path!r:.80}; see docs/serving.md for the paths.",
        405: f"{path!r:.80} does not take {request.method}.",
    }
    message = said.get(error.status_code, error.detail)
    response = error_response(ApiError(error.status_code, message, code="unknown_path"))
    response.headers.update(error.headers or {})
    return response


async def _failed(request: HttpRequest, error: Exception) -> Response:
    """Returns what a fault of the program looks like from outside; the log has the rest."""
    return error_response(ApiError(500, FAILED, code="internal_error"))
