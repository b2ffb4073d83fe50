"""`ApiKeys`: who may ask.

Keys come from a file or from the environment, never from the command line, which every user of a
machine can read.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from axcore.errors import ConfigError
from axcore.serving.api_error import ApiError

VARIABLE = "AXCORE_API_KEYS"
"""Keys, with commas between them."""

_LEAST = 8


class ApiKeys:
    """The keys of a server; without one, everybody may ask.

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
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """Raises ApiError 401 where a header brings none of the keys.

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
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        if kind.lower() != "bearer" or not any(matches):
            raise ApiError(401, "The API key is not one of this server's.", code="invalid_api_key")


NO_KEYS = ApiKeys()
"""Lets everybody ask."""


def read_api_keys(file: str | None, environment: Mapping[str, str] = os.environ) -> ApiKeys:
    """Returns the keys of a file, one a line, and of the environment.

    Raises:
        ConfigError: The file cannot be read, holds no key, or may be read by others.
    """
    named = [key.strip() for key in environment.get(VARIABLE, "").split(",")]
    return ApiKeys(tuple(key for key in [*named, *_in_file(file)] if key))


def _in_file(name: str | None) -> list[str]:
    if name is None:
        return []
    path = Path(name).expanduser()
    try:
        mode, lines = path.stat().st_mode, path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the API keys cannot be read: {error}", where="--api-key-file"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"others may read {name}, which holds API keys",
            where="--api-key-file",
            hint=f"chmod 600 {name}",
        )
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{name} holds no API key", where="--api-key-file", hint="one a line")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
