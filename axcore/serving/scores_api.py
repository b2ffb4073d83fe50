"""`Scores` and `Rerank`: how near texts are to others, by the vectors of `/v1/embeddings`.

A score is the cosine of two vectors. Models that read both texts together are not served so.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from axcore.serving.api_error import invalid
from axcore.serving.embeddings_api import EmbeddingRequest, Embeddings
from axcore.serving.endpoint import Endpoint
from axcore.serving.request_parser import RequestParser, checked_text

_MAX_TEXTS = 2048


@attrs.frozen(kw_only=True, eq=False)
class ScoreRequest:
    """Which texts are compared.

    Args:
        vectors: The texts of both sides, those of the first one first.
        num_first: Texts of the first side: one, or as many as of the second.
        documents: The second side, as it was sent.
        num_results: Results that are sent, the best ones; None sends all.
        has_documents: Whether results have their texts.
    """

    vectors: EmbeddingRequest
    num_first: int
    documents: tuple[str, ...]
    num_results: int | None = None
    has_documents: bool = False


class _Comparison(Endpoint[ScoreRequest, NDArray[np.float32]]):
    """Compares texts by a model's vectors.

    Args:
        embeddings: Makes them.
    """

    max_batch = 8

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def compute(self, state: Any, jobs: Sequence[ScoreRequest]) -> Sequence[NDArray[np.float32]]:
        """Return the scores of each request."""
        found = self._embeddings.compute(state, [job.vectors for job in jobs])
        return [
            (vectors[: job.num_first] * vectors[job.num_first :]).sum(axis=-1)
            for job, vectors in zip(jobs, found, strict=True)
        ]

    def num_tokens(self, job: ScoreRequest) -> int:
        """Return the tokens of all texts."""
        return self._embeddings.num_tokens(job.vectors)

    def _request(self, first: Sequence[str], second: Sequence[str], **more: Any) -> ScoreRequest:
        names = self._fields
        texts = [
            (text, f"{name}[{number}]" if len(side) > 1 else name)
            for name, side in zip(names, (first, second), strict=True)
            for number, text in enumerate(side)
        ]
        encoded = self._embeddings.encoded(texts, names[1])
        vectors = EmbeddingRequest(texts=encoded, is_base64=False)
        return ScoreRequest(vectors=vectors, num_first=len(first), documents=tuple(second), **more)

    _fields: tuple[str, str] = ("query", "documents")


class Scores(_Comparison):
    """Answers `/v1/score`."""

    path = "/v1/score"
    _fields = ("text_1", "text_2")

    def read(self, fields: RequestParser) -> ScoreRequest:
        """Return the texts of a request: one with each of several, or pairs."""
        first, second = (_texts(fields, name) for name in self._fields)
        if len(first) not in (1, len(second)):
            message = f"text_1 has {len(first)} texts, and text_2 {len(second)}; expected 1, or"
            raise invalid(f"{message} as many", "text_1")
        return self._request(first, second)

    def response(self, job: ScoreRequest, result: NDArray[np.float32], *, model: str) -> Any:
        """Return the scores as vLLM has them."""
        total = self.num_tokens(job)
        return {
            "object": "list",
            "data": [
                {"index": index, "object": "score", "score": score}
                for index, score in enumerate(result.tolist())
            ],
            "model": model,
            "usage": {"prompt_tokens": total, "total_tokens": total},
        }


class Rerank(_Comparison):
    """Answers `/v1/rerank`."""

    path = "/v1/rerank"

    def read(self, fields: RequestParser) -> ScoreRequest:
        """Return the query of a request and its documents."""
        query, documents = fields.text("query"), _texts(fields, "documents")
        if not query:
            raise invalid("query is missing; expected a text", "query", code="missing_field")
        return self._request(
            [query],
            documents,
            num_results=fields.integer("top_n", min_value=1, max_value=2**31 - 1),
            has_documents=fields.boolean("return_documents", default=True),
        )

    def response(self, job: ScoreRequest, result: NDArray[np.float32], *, model: str) -> Any:
        """Return the documents, the nearest one first, as Jina's and Cohere's APIs have them."""
        # Stable, so that documents of one score stay in their order.
        order = np.argsort(-result, kind="stable")[: job.num_results].tolist()
        total = self.num_tokens(job)
        return {
            "model": model,
            "results": [
                {
                    "index": index,
                    "relevance_score": float(result[index]),
                    **({"document": {"text": job.documents[index]}} if job.has_documents else {}),
                }
                for index in order
            ],
            "usage": {"prompt_tokens": total, "total_tokens": total},
        }


def _texts(fields: RequestParser, name: str) -> list[str]:
    """Return one text or several; a document may be an object with its text."""
    found, path = fields.raw(name), fields.path(name)
    texts = [found] if isinstance(found, str) else fields.items(name, max_items=_MAX_TEXTS)
    if not texts:
        raise invalid(f"{path} is missing; expected texts", path, code="missing_field")
    return [_text(one, f"{path}[{number}]") for number, one in enumerate(texts)]


def _text(found: Any, where: str) -> str:
    if isinstance(found, dict):
        inner = RequestParser(found, where)
        found = inner.text("text")
        inner.finish()
    if not isinstance(found, str) or not found:
        raise invalid(f"{where} is {found!r:.40}; expected a text", where, code="invalid_type")
    return checked_text(found, where)
