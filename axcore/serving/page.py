"""The page at `/`: to try a model, and to watch its server."""

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


async def page(request: HttpRequest) -> HTMLResponse:
    """Returns the page; it is the same for everybody, and runs only what it holds itself."""
    content, policy = _content()
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return HTMLResponse(content, headers=headers)


@cache
def _content() -> tuple[str, str]:
    """Returns the page and its content security policy, which names its parts by digest."""
    content = resources.files("axcore.serving").joinpath("page.html").read_text("utf-8")
    allowed = {"script": "", "style": ""}
    for kind, text in _INLINE.findall(content):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[kind] += f" 'sha256-{digest}'"
    policy = (
        f"default-src 'none'; script-src{allowed['script']}; style-src{allowed['style']}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return content, policy
