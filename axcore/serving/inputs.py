"""`InputReader`: pictures and other parts of a conversation, for the encoder of the model.

A part arrives in the request itself, as base64, or is a file of a server that the config allows.
"""

import http.client
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs

from axcore.data import (
    PART_TYPES,
    ChatTemplate,
    Feature,
    read_data_url,
    reads_parts,
    with_soft_tokens,
)
from axcore.errors import DataError
from axcore.inference import EncoderInput
from axcore.serving.api_error import ApiError, invalid
from axcore.serving.config import Limits
from axcore.serving.request_parser import RequestParser

_TIMEOUT_S = 10.0
_NEEDS_NO_DETAIL = "each picture becomes as many tokens as the model was trained with"


@attrs.frozen
class ContentPart:
    """A part of a message that is not text.

    Args:
        kind: Its type, as `image_url`.
        path: The field of the request that has its content, for errors.
        url: Where its content is: a data URL, or one of a server.
    """

    kind: str
    path: str
    url: str


def read_part(fields: RequestParser, kind: str) -> ContentPart:
    """Return a part of a message that is not text.

    Raises:
        ApiError: It is not as OpenAI's API has it, or of a type that this API does not know.
    """
    if kind == "image_url":
        inner = fields.inner("image_url")
        url = None if inner is None else inner.text("url")
        path = fields.path("image_url.url")
        if inner is not None:
            inner.ignore("detail", _NEEDS_NO_DETAIL)
            inner.finish()
    elif kind == "input_audio":
        inner = fields.inner("input_audio")
        content = None if inner is None else inner.text("data")
        path = fields.path("input_audio.data")
        url = None if content is None else f"data:audio/any;base64,{content}"
        if inner is not None:
            inner.ignore("format", "the file says itself of which format it is")
            inner.finish()
    else:
        where = fields.path("type")
        raise invalid(f"{where} is {kind!r:.40}; the model reads 'text' only", where)
    if not url:
        raise invalid(f"{path} is missing", path, code="missing_field")
    return ContentPart(kind, path, url)


@attrs.frozen
class InputReader:
    """Makes inputs of an encoder out of parts of messages.

    Args:
        feature: Decodes a file as it did in training.
        mark: What the text has in the place of an input.
        mark_token: Its token.
        num_soft_tokens: Tokens of an input.
        takes_parts: Whether the chat template reads contents as lists of parts, and writes the
            marks itself.
    """

    feature: Feature
    mark: str
    mark_token: int
    num_soft_tokens: int
    takes_parts: bool = False

    def read(self, part: ContentPart, limits: Limits) -> EncoderInput:
        """Return what the encoder takes; not on the event loop, since it may take long.

        Raises:
            ApiError: There is no such file, or it cannot be decoded.
        """
        return read_input(self.feature, part, limits)

    def placed(self, tokens: Any, num_inputs: int) -> tuple[int, ...]:
        """Return the tokens of a conversation, soft ones in the place of each mark.

        Raises:
            ApiError: The text has another number of marks than there are inputs.
        """
        found = int((tokens == self.mark_token).sum())
        if found != num_inputs:
            message = (
                f"messages have {num_inputs} parts that are not text, and {found} times "
                f"{self.mark!r}, which is for one; leave it out of the text"
            )
            raise invalid(message, "messages")
        placed, _ = with_soft_tokens(tokens, tokens, self.mark_token, self.num_soft_tokens)
        return tuple(placed.tolist())


def read_input(feature: Feature, part: ContentPart, limits: Limits) -> EncoderInput:
    """Return what an encoder takes of a part.

    Args:
        feature: Decodes a file as it did in training.
        part: The part.
        limits: Where it may be fetched from, and how large it may be.

    Raises:
        ApiError: There is no such file, or it cannot be decoded.
    """
    content = part_content(part, limits)
    (field,) = feature.fields
    try:
        # Not `check`, which turns warnings of the process into errors: other threads run.
        (value,) = feature.make({field: content}, None).values()
    except (ValueError, DataError) as error:
        raise invalid(f"{part.path} cannot be read: {error}", part.path) from error
    return EncoderInput(value)


def input_reader(model: Any, data: Any, template: ChatTemplate | None) -> InputReader | None:
    """Return the reader of a model's inputs, as its data has them; None where it reads text alone.

    Args:
        model: As it is trained.
        data: That it was trained on.
        template: Writes conversations.
    """
    if getattr(model, "input_spec", None) is None:
        return None
    feature = data.features[model.config.input_name]
    chat = next((one for one in data.features.values() if hasattr(one, "mark")), None)
    if chat is None or chat.mark is None or feature.part_type is None:
        return None
    mark = chat.config.soft_token
    return InputReader(
        feature,
        mark,
        chat.mark,
        model.num_soft_tokens,
        takes_parts=template is not None
        and reads_parts(template, mark, PART_TYPES[feature.part_type]),
    )


def marked(
    messages: Sequence[dict[str, Any]], reader: InputReader | None
) -> tuple[list[dict[str, Any]], list[ContentPart]]:
    """Return messages whose contents are as templates read them, and their parts but for text.

    Args:
        messages: As `read_messages` returns them.
        reader: What the model reads in addition to text.

    Raises:
        ApiError: It does not read one of the parts.
    """
    parts: list[ContentPart] = []

    def text(piece: str | ContentPart) -> str:
        if isinstance(piece, str):
            return piece
        known = "text" if reader is None else f"text and {reader.feature.part_type}"
        if reader is None or piece.kind != reader.feature.part_type:
            message = f"{piece.path} is a part of type {piece.kind!r}; the model reads {known} only"
            raise invalid(message, piece.path)
        parts.append(piece)
        return reader.mark

    def part(piece: str | ContentPart) -> dict[str, str]:
        if isinstance(piece, str):
            return {"type": "text", "text": piece}
        text(piece)
        return {"type": PART_TYPES[piece.kind]}

    made = []
    for message in messages:
        content = message["content"]
        pieces = (content,) if isinstance(content, str) else content
        if reader is not None and reader.takes_parts:
            made.append({**message, "content": [part(piece) for piece in pieces if piece]})
        else:
            made.append({**message, "content": "".join(map(text, pieces))})
    return made, parts


def part_content(part: ContentPart, limits: Limits) -> bytes:
    """Return the bytes of a part.

    Raises:
        ApiError: They are not base64, or their server is not allowed or does not have them.
    """
    if part.url.startswith("data:"):
        try:
            return read_data_url(part.url)
        except ValueError as error:
            raise invalid(f"{part.path} is {error}", part.path) from error
    return _fetched(part, limits)


def _fetched(part: ContentPart, limits: Limits) -> bytes:
    """Return a file of a server; redirects are not followed, which could lead to any other."""
    try:
        url = urlsplit(part.url)
    except ValueError as error:
        raise invalid(f"{part.path} is not a URL: {error}", part.path) from error
    origin = f"{url.scheme}://{url.netloc}"
    if origin not in limits.media_origins:
        allowed = ", ".join(limits.media_origins) or "none"
        raise invalid(
            f"{part.path} is {part.url!r:.80}, which this server does not fetch (it fetches from: "
            f"{allowed}); send the file itself: data:image/png;base64,...",
            part.path,
            code="url_not_allowed",
        )
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", (url.path or "/") + (f"?{url.query}" if url.query else ""))
        sock = connection.sock  # the connection lets go of it where the server will close it
        response = connection.getresponse()
        content = _read(response, sock, limits.max_body_bytes + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _not_fetched(part, str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if response.status != 200:
        raise _not_fetched(part, f"status {response.status}")
    if len(content) > limits.max_body_bytes:
        raise _not_fetched(part, f"it has more than {limits.max_body_bytes:,} bytes")
    return content


def _read(response: http.client.HTTPResponse, sock: Any, max_bytes: int) -> bytes:
    """Return a file that comes within the time limit, which the socket has for each piece alone."""
    deadline, content = time.monotonic() + _TIMEOUT_S, b""
    while len(content) < max_bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"it took more than {_TIMEOUT_S:g} s")
        sock.settimeout(left)
        piece = response.read1(max_bytes - len(content))
        if not piece:
            break
        content += piece
    return content


def _not_fetched(part: ContentPart, why: str) -> ApiError:
    return invalid(f"{part.path} could not be fetched: {why}", part.path, code="url_not_fetched")
