"""`serving_app`: a server's paths, as an ASGI application, and what each of them leads to.

`POST /v1/chat/completions` is `chat_api`, `POST /v1/completions` is `completions_api`, and
`POST /v1/responses` is `responses_api`; all go through `request_handler.generate`. Paths of one
call of the model are its endpoints, by `request_handler.answer`. What says how the server does is
here.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache, partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from axcore import __version__
from axcore.serving.access import NO_KEYS, AccessMiddleware, ApiKeys, error_response
from axcore.serving.adapters import load_adapter, unload_adapter
from axcore.serving.api_error import ENGINE_FAILED, FAILED, ApiError
from axcore.serving.chat_api import chat_completions
from axcore.serving.completions_api import completions
from axcore.serving.metrics import ServerMetrics
from axcore.serving.models_api import describe_model, detokenize, list_models, tokenize
from axcore.serving.request_handler import answer, any_served
from axcore.serving.responses_api import create_response
from axcore.serving.served import Served
from axcore.serving.served_model import ServedModel, draining

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def serving_app(
    served: Served,
    *,
    keys: ApiKeys = NO_KEYS,
    hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
) -> Starlette:
    """Return the application that answers requests by a model.

    Args:
        served: The model.
        keys: Who may ask; by default everybody.
        hosts: Names that requests may call the server; by default all.
        cors_origins: Whose pages may use the server, as `https://example.com`; `*` is all.
    """
    metrics = ServerMetrics(served)
    writes_text = isinstance(served, ServedModel)
    read: list[tuple[str, Any]] = [
        *([("/", page)] if writes_text else []),
        ("/health", health),
        ("/ready", ready),
        ("/version", version),
        ("/metrics", prometheus),
        ("/stats", stats),
        ("/v1/models", list_models),
        # `:path`, as names of models may have slashes: org/model.
        ("/v1/models/{name:path}", describe_model),
    ]
    text: list[tuple[str, Any]] = [
        ("/v1/completions", completions),
        ("/v1/chat/completions", chat_completions),
        ("/v1/responses", create_response),
        ("/tokenize", tokenize),
        ("/detokenize", detokenize),
    ]
    if isinstance(served, ServedModel) and served.adapter_folder is not None:
        text += [
            ("/v1/load_lora_adapter", load_adapter),
            ("/v1/unload_lora_adapter", unload_adapter),
        ]
    called = [(one.path, partial(answer, endpoint=one)) for one in served.endpoints]
    sent = [*(text if writes_text else []), *called]
    routes = [
        *(Route(path, function, methods=["GET"]) for path, function in read),
        *(Route(path, function, methods=["POST"]) for path, function in sent),
    ]
    # The outermost layer, also around Starlette's own error pages.
    access = Middleware(AccessMiddleware, keys=keys, hosts=hosts, metrics=metrics, routes=routes)
    app = Starlette(
        routes=routes,
        middleware=[*_cors(cors_origins), access],
        # 500 gives clients no traceback; Starlette raises the
        # error once more after it has answered, so the log has it.
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, 500: _failed},
    )
    app.state.served, app.state.metrics = served, metrics
    return app


def _cors(origins: Sequence[str]) -> list[Middleware]:
    """Return what lets pages of other sites use the server, around all else: errors, too."""
    if not origins:
        return []
    # No credentials: keys are in a header that the page sets itself, and there are no cookies.
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    ]


async def version(request: HttpRequest) -> Response:
    """Return the version of axcore."""
    return JSONResponse({"version": __version__})


async def health(request: HttpRequest) -> Response:
    """Report that the process answers, and that its engine can, or some of its replicas."""
    _check_engine(any_served(request))
    failed = _failed_replicas(any_served(request))
    return JSONResponse({"status": "degraded" if failed else "ok", **failed})


async def ready(request: HttpRequest) -> Response:
    """Report whether requests are taken."""
    served = any_served(request)
    # Before the engine: a server that drains is not ready, however well it works.
    # `/health` still says ok, or the orchestrator would kill it while it drains.
    if served.is_draining:
        raise draining(served.limits.retry_after_s)
    _check_engine(served)
    completion = {"status": "ready", "model": served.name, **_failed_replicas(served)}
    return JSONResponse(completion)


async def prometheus(request: HttpRequest) -> Response:
    """Return the stats of the server and its engine, for Prometheus."""
    return Response(request.app.state.metrics.text(), headers={"content-type": _METRICS_TYPE})


async def stats(request: HttpRequest) -> Response:
    """Return the model and its stats."""
    served = any_served(request)
    return JSONResponse({"model": served.name, "step": served.step, **served.described()})


async def page(request: HttpRequest) -> HTMLResponse:
    """Return the page to try a model; it is the same for everybody, and runs only its own code."""
    content, policy = _page_and_policy()
    # A page that shows what a model wrote must not run it, even if escaping fails somewhere.
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return HTMLResponse(content, headers=headers)


@cache
def _page_and_policy() -> tuple[str, str]:
    """Return the page and its content security policy, which names its parts by digest."""
    content = resources.files("axcore.serving").joinpath("page.html").read_text("utf-8")
    allowed = {"script": "", "style": ""}
    # By digest instead of 'unsafe-inline': a script that is injected has another one.
    for kind, text in _INLINE.findall(content):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[kind] += f" 'sha256-{digest}'"
    policy = (
        f"default-src 'none'; script-src{allowed['script']}; style-src{allowed['style']}; "
        # Pictures that the user chose are shown from the page itself.
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return content, policy


def _check_engine(served: Served) -> None:
    """Raise ApiError where a step failed: only another process can answer then."""
    if served.error is not None:
        # 503, so that an orchestrator starts another process; this one cannot recover.
        raise ApiError(503, ENGINE_FAILED, code="engine_error")


def _failed_replicas(served: Served) -> dict[str, int]:
    """Return how many replicas failed, of how many; nothing where none did."""
    if not isinstance(served, ServedModel):
        return {}
    found = served.engine.stats()
    if not found.num_failed_replicas:
        return {}
    return {"replicas": found.num_replicas, "failed_replicas": found.num_failed_replicas}


async def _api_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    """Return Starlette's own errors, 404 and 405, in the same shape."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    said = {
        404: f"There is nothing at {path!r:.80}; see docs/serving-reference.md for the paths.",
        405: f"{path!r:.80} does not take {request.method}.",
    }
    message = said.get(error.status_code, error.detail)
    response = error_response(ApiError(error.status_code, message, code="unknown_path"))
    # Such as `Allow`, which 405 must have.
    response.headers.update(error.headers or {})
    return response


async def _failed(request: HttpRequest, error: Exception) -> Response:
    """Return what a client sees of a fault of the program; the log has the rest."""
    return error_response(ApiError(500, FAILED, code="internal_error"))
