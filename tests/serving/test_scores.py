"""`/v1/score` and `/v1/rerank`: texts are compared by their vectors."""

import numpy as np
import pytest
from model_server import embeddings_of, serving

from axcore.serving.scores_api import Rerank, Scores

TEXTS = ["a cat", "a dog sleeps", "seven"]


@pytest.fixture(scope="module")
def server(engine):
    embeddings = embeddings_of(engine)
    with serving(engine, endpoints=(embeddings, Scores(embeddings), Rerank(embeddings))) as made:
        yield made


def cosines(server, query):
    reply = server.send("v1/embeddings", {"input": [query, *TEXTS]})
    rows = np.array([one["embedding"] for one in reply.json["data"]])
    return rows[1:] @ rows[0]


def send(server, path, **fields):
    reply = server.send(path, fields)
    assert reply.status == 200, reply.text
    return reply.json


def test_scores_are_the_cosines_of_vectors(server):
    expected = cosines(server, "a cat")
    found = send(server, "v1/score", text_1="a cat", text_2=TEXTS)
    np.testing.assert_allclose([one["score"] for one in found["data"]], expected, atol=1e-5)
    assert found["data"][0]["score"] == pytest.approx(1, abs=1e-5)
    pairs = send(server, "v1/score", text_1=TEXTS, text_2=TEXTS)
    np.testing.assert_allclose([one["score"] for one in pairs["data"]], 1, atol=1e-5)
    assert found["usage"]["prompt_tokens"] == len("a cat") + sum(map(len, TEXTS)) + 4


def test_documents_are_sorted_by_their_scores(server):
    expected = cosines(server, "a dog")
    found = send(server, "v1/rerank", query="a dog", documents=TEXTS)["results"]
    assert [one["index"] for one in found] == np.argsort(-expected).tolist()
    for one in found:
        assert one["document"] == {"text": TEXTS[one["index"]]}
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-5)
    documents = [{"text": one} for one in TEXTS]
    fields = {"query": "a dog", "documents": documents, "top_n": 2, "return_documents": False}
    first = send(server, "v1/rerank", **fields)["results"]
    assert [one["index"] for one in first] == [one["index"] for one in found[:2]]
    assert "document" not in first[0]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("v1/score", {"text_1": "a"}, "text_2"),
        ("v1/rerank", {"documents": ["a"]}, "query"),
        ("v1/rerank", {"query": "a", "documents": ["a", 1]}, "documents[1]"),
        ("v1/rerank", {"query": "a", "documents": ["b", "a" * 500]}, "documents[1]"),
        ("v1/rerank", {"query": "a", "documents": ["b"], "top_k": 1}, "top_k"),
    ],
)
def test_what_is_wrong_is_named(server, path, fields, param):
    reply = server.send(path, fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
