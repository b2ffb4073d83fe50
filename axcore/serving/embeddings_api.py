"""`Embeddings`: `/v1/embeddings`, a vector for each text, by a model that makes them of tokens.

A model that also makes them of pictures takes these as OpenAI's chats have them: as parts of
`input`, or as `messages`.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.inference import EncoderInput
from axcore.serving.api_error import invalid
from axcore.serving.chat_messages import read_messages
from axcore.serving.endpoint import Endpoint
from axcore.serving.inputs import ContentPart, read_part
from axcore.serving.request_parser import RequestParser, checked_text

_MAX_TEXTS, _MAX_TOKENS = 2048, 300_000
"""Texts of a request, and their tokens, as OpenAI's API has it."""

_MAX_PARTS = 64
"""Pictures of a request."""

Tokens = NDArray[np.int32]
Embedded = Tokens | EncoderInput
"""What one vector is of."""

_Asked = str | list[int] | ContentPart


@attrs.frozen(kw_only=True, eq=False)
class EmbeddingRequest:
    """Which texts and pictures become vectors.

    Args:
        texts: Tokens of each, or what the encoder of pictures takes.
        is_base64: Whether vectors are sent as bytes and not as numbers.
    """

    texts: tuple[Embedded, ...]
    is_base64: bool


class Embeddings(Endpoint[EmbeddingRequest, NDArray[np.float32]]):
    """Answers `/v1/embeddings`.

    Args:
        encode: Returns the tokens of a text, those that begin and end it included.
        embed: Returns vectors of length 1, `[texts, dim]`, of the model's state and of tokens, or
            of what `read_part` returns.
        vocab_size: Tokens that texts may have.
        max_length: Tokens of the longest text.
        dim: Size of a vector.
        part_type: The type of parts that the model reads, as `image_url`; None where it reads
            text alone.
        read_part: Returns what an encoder takes of such a part.
    """

    path = "/v1/embeddings"
    max_batch = 8

    def __init__(
        self,
        encode: Callable[[str], Tokens],
        embed: Callable[[Any, Sequence[Any]], NDArray[np.float32]],
        *,
        vocab_size: int,
        max_length: int,
        dim: int,
        part_type: str | None = None,
        read_part: Callable[[ContentPart], EncoderInput] | None = None,
    ) -> None:
        self._encode, self._embed = encode, embed
        self._vocab_size, self._max_length, self._dim = vocab_size, max_length, dim
        self._part_type, self._read_part = part_type, read_part

    def read(self, fields: RequestParser) -> EmbeddingRequest:
        """Return the texts of a request, as tokens, and its pictures."""
        form = fields.choice("encoding_format", ("float", "base64"))
        dimensions = fields.integer("dimensions", min_value=1, max_value=2**31 - 1)
        if dimensions not in (None, self._dim):
            message = (
                f"dimensions is {dimensions}; vectors of this model have {self._dim} numbers, and "
                "it was not trained for a part of them"
            )
            raise invalid(message, "dimensions")
        fields.text("user")
        has_messages = self._read_part is not None and fields.raw("messages") is not None
        if has_messages and fields.raw("input") is not None:
            raise invalid("the request has input and messages; expected one of them", "input")
        asked = _of_messages(fields) if has_messages else _inputs(fields)
        texts = self.encoded(asked, "messages" if has_messages else "input")
        return EmbeddingRequest(texts=texts, is_base64=form == "base64")

    def encoded(self, texts: Sequence[tuple[_Asked, str]], where: str) -> tuple[Embedded, ...]:
        """Return the tokens of texts, and what an encoder takes of parts.

        Args:
            texts: Each with the field that it is in.
            where: The field of all of them.

        Raises:
            ApiError: One is too long, or all of them are; or a part cannot be read.
        """
        found = tuple(
            self._input(one) if isinstance(one, ContentPart) else self._tokens(one, path)
            for one, path in texts
        )
        if (total := _num_tokens(found)) > _MAX_TOKENS:
            message = f"{where} has {total:,} tokens; at most {_MAX_TOKENS:,} are accepted at once"
            raise invalid(message, where)
        return found

    def compute(
        self, state: Any, jobs: Sequence[EmbeddingRequest]
    ) -> Sequence[NDArray[np.float32]]:
        """Return the vectors of each request."""
        vectors = self._embed(state, [text for job in jobs for text in job.texts])
        ends = np.cumsum([len(job.texts) for job in jobs])
        return np.split(vectors, ends[:-1])

    def response(self, job: EmbeddingRequest, result: NDArray[np.float32], *, model: str) -> Any:
        """Return the vectors as OpenAI's API has them."""
        rows = [_as_base64(row) if job.is_base64 else row.tolist() for row in result]
        total = self.num_tokens(job)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": row}
                for index, row in enumerate(rows)
            ],
            "model": model,
            "usage": {"prompt_tokens": total, "total_tokens": total},
        }

    def num_tokens(self, job: EmbeddingRequest) -> int:
        """Return the tokens of all texts."""
        return _num_tokens(job.texts)

    def _input(self, part: ContentPart) -> EncoderInput:
        if self._read_part is None or part.kind != self._part_type:
            known = "text" if self._part_type is None else f"text and {self._part_type}"
            message = f"{part.path} is a part of type {part.kind!r}; the model reads {known} only"
            raise invalid(message, part.path)
        return self._read_part(part)

    def _tokens(self, found: str | list[int], where: str) -> Tokens:
        if isinstance(found, str):
            tokens = self._encode(found)
        elif max(found) >= self._vocab_size:
            message = f"{where} has token {max(found)}; the vocabulary has {self._vocab_size}"
            raise invalid(message, where)
        else:
            tokens = np.array(found, np.int32)
        if len(tokens) > self._max_length:
            message = (
                f"This model's maximum context length is {self._max_length} tokens. However, "
                f"{where} has {len(tokens)}. Reduce its length."
            )
            raise invalid(message, where, code="context_length_exceeded")
        return tokens


def _num_tokens(found: Sequence[Embedded]) -> int:
    return sum(len(one) for one in found if not isinstance(one, EncoderInput))


def _inputs(fields: RequestParser) -> list[tuple[_Asked, str]]:
    """Return the texts of a request, or their tokens, and its other parts; and where each is."""
    found = fields.raw("input")
    if found is None:
        raise invalid("input is missing; expected a text", "input", code="missing_field")
    is_one = isinstance(found, str) or (isinstance(found, list) and all(map(_is_token, found)))
    if isinstance(found, list) and len(found) > _MAX_TEXTS and not is_one:
        message = f"input has {len(found)} texts; at most {_MAX_TEXTS} are accepted"
        raise invalid(message, "input")
    if is_one or not isinstance(found, list):
        return [(_input(found, "input"), "input")]
    if (count := sum(isinstance(one, dict) for one in found)) > _MAX_PARTS:
        raise invalid(f"input has {count} parts; at most {_MAX_PARTS} are accepted", "input")
    return [(_input(one, f"input[{n}]"), f"input[{n}]") for n, one in enumerate(found)]


def _input(found: Any, where: str) -> _Asked:
    if isinstance(found, dict):
        return _part(RequestParser(found, where), where)
    is_tokens = isinstance(found, list) and all(map(_is_token, found))
    if not isinstance(found, str) and not is_tokens:
        expected = "a text or a list of token numbers"
        raise invalid(f"{where} is {found!r:.40}; expected {expected}", where, code="invalid_type")
    if not found:
        raise invalid(f"{where} is empty; expected a text of at least one token", where)
    return checked_text(found, where) if isinstance(found, str) else found


def _part(fields: RequestParser, where: str) -> _Asked:
    """Return a part as contents of messages have it: its text, or where its file is."""
    kind = fields.raw("type")
    text = fields.text("text") if kind == "text" else None
    found = read_part(fields, kind) if kind != "text" else _input(text, fields.path("text"))
    fields.finish()
    return found


def _of_messages(fields: RequestParser) -> list[tuple[_Asked, str]]:
    """Return the one text or part of a conversation.

    Raises:
        ApiError: There are several, of which no model here makes one vector.
    """
    contents = [one["content"] for one in read_messages(fields)]
    pieces = [
        piece for one in contents for piece in ([one] if isinstance(one, str) else one) if piece
    ]
    if len(pieces) != 1:
        message = (
            f"messages have {len(pieces)} texts and other parts; a vector of this model is of one: "
            "send several as a list, as input"
        )
        raise invalid(message, "messages")
    return [(pieces[0], "messages")]


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _as_base64(row: NDArray[np.float32]) -> str:
    """Return the bytes of float32 numbers, the smallest byte first."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
