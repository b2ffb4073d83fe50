"""Errors as OpenAI's API words them: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping
from typing import Any

from axcore.errors import AxcoreError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}

FAILED = "The server failed over this request; its log says how."
ENGINE_FAILED = "The engine failed, and the server ends; its log says how."


class ApiError(Exception):
    """Ends a request with a status and a message that its sender can act on.

    Args:
        status: The HTTP status.
        message: What is wrong, with values, and what to do about it.
        param: The field that is wrong, as `messages[0].role`.
        code: What a program can compare.
        retry_after_s: Seconds after which the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after_s = retry_after_s

    @property
    def content(self) -> dict[str, Any]:
        """The body of the response."""
        kind = _TYPES.get(self.status, "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def headers(self) -> Mapping[str, str]:
        """More headers of the response."""
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def invalid(message: str, param: str | None, *, code: str = "invalid_value") -> ApiError:
    """Return the error of a field whose value cannot be used."""
    return ApiError(400, message, param=param, code=code)


def from_error(error: AxcoreError, param: str | None) -> ApiError:
    """Return what an error of axcore's says to the sender of a request, its hint included.

    Paths of files, which `where` may hold, stay on this machine.
    """
    hint = f" {error.hint}" if error.hint else ""
    return invalid(f"{error.what.rstrip('.')}.{hint}", param)
