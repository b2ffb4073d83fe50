"""`Embeddings`: `/v1/embeddings`, a vector for each text, by a model that makes them of tokens."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.serving.api_error import invalid
from axcore.serving.endpoint import Endpoint
from axcore.serving.request_parser import RequestParser, checked_text

_MAX_TEXTS, _MAX_TOKENS = 2048, 300_000
"""Texts of a request, and their tokens, as OpenAI's API has it."""

Tokens = NDArray[np.int32]


@attrs.frozen(kw_only=True, eq=False)
class EmbeddingRequest:
    """Which texts become vectors.

    Args:
        texts: Tokens of each.
        is_base64: Whether vectors are sent as bytes and not as numbers.
    """

    texts: tuple[Tokens, ...]
    is_base64: bool


class Embeddings(Endpoint[EmbeddingRequest, NDArray[np.float32]]):
    """Answers `/v1/embeddings`.

    Args:
        encode: Returns the tokens of a text, those that begin and end it included.
        embed: Returns vectors of length 1, `[texts, dim]`, of the model's state and of tokens.
        vocab_size: Tokens that texts may have.
        max_length: Tokens of the longest text.
        dim: Size of a vector.
    """

    path = "/v1/embeddings"
    max_batch = 8

    def __init__(
        self,
        encode: Callable[[str], Tokens],
        embed: Callable[[Any, Sequence[Tokens]], NDArray[np.float32]],
        *,
        vocab_size: int,
        max_length: int,
        dim: int,
    ) -> None:
        self._encode, self._embed = encode, embed
        self._vocab_size, self._max_length, self._dim = vocab_size, max_length, dim

    def read(self, fields: RequestParser) -> EmbeddingRequest:
        """Return the texts of a request, as tokens."""
        form = fields.choice("encoding_format", ("float", "base64"))
        dimensions = fields.integer("dimensions", min_value=1, max_value=2**31 - 1)
        if dimensions not in (None, self._dim):
            message = (
                f"dimensions is {dimensions}; vectors of this model have {self._dim} numbers, and "
                "it was not trained for a part of them"
            )
            raise invalid(message, "dimensions")
        fields.text("user")
        texts = self.encoded(_inputs(fields), "input")
        return EmbeddingRequest(texts=texts, is_base64=form == "base64")

    def encoded(
        self, texts: Sequence[tuple[str | list[int], str]], where: str
    ) -> tuple[Tokens, ...]:
        """Return the tokens of texts.

        Args:
            texts: Each with the field that it is in.
            where: The field of all of them.

        Raises:
            ApiError: One is too long, or all of them are.
        """
        found = tuple(self._tokens(one, path) for one, path in texts)
        if (total := sum(map(len, found))) > _MAX_TOKENS:
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
        return sum(map(len, job.texts))

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


def _inputs(fields: RequestParser) -> list[tuple[str | list[int], str]]:
    """Return the texts of a request, or their tokens, and where each is."""
    found = fields.raw("input")
    if found is None:
        raise invalid("input is missing; expected a text", "input", code="missing_field")
    is_one = isinstance(found, str) or (isinstance(found, list) and all(map(_is_token, found)))
    if isinstance(found, list) and len(found) > _MAX_TEXTS and not is_one:
        message = f"input has {len(found)} texts; at most {_MAX_TEXTS} are accepted"
        raise invalid(message, "input")
    if is_one or not isinstance(found, list):
        return [(_input(found, "input"), "input")]
    return [(_input(one, f"input[{n}]"), f"input[{n}]") for n, one in enumerate(found)]


def _input(found: Any, where: str) -> str | list[int]:
    is_tokens = isinstance(found, list) and all(map(_is_token, found))
    if not isinstance(found, str) and not is_tokens:
        expected = "a text or a list of token numbers"
        raise invalid(f"{where} is {found!r:.40}; expected {expected}", where, code="invalid_type")
    if not found:
        raise invalid(f"{where} is empty; expected a text of at least one token", where)
    return checked_text(found, where) if isinstance(found, str) else found


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _as_base64(row: NDArray[np.float32]) -> str:
    """Return the bytes of float32 numbers, the smallest byte first."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
