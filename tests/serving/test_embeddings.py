"""`/v1/embeddings`: equal to the plain forward pass, whatever is embedded with it."""

import jax.numpy as jnp
import numpy as np
import openai
import pytest
from model_server import LENGTH, SMALL, byte_tokenizer, embeddings_of, serving, small_model

from axcore.config import evolve
from axcore.inference import Draft, DraftModel, Engine, open_engine
from axcore.inference.embedding import TextEmbedder
from axcore.inference.placement import Placement
from axcore.layers import whole_rows
from axcore.module import functional

TEXTS = ["a", "bc de", "a much longer text, which needs another program"]


@pytest.fixture(scope="module")
def engine():
    """Without its programs, of which none is needed."""
    tokenizer = byte_tokenizer()
    with Engine(*small_model(tokenizer), tokenizer, SMALL) as made:
        yield made


@pytest.fixture(scope="module", params=["last", "mean"])
def pooling(request):
    return request.param


@pytest.fixture(scope="module")
def server(engine, pooling):
    with serving(engine, endpoints=(embeddings_of(engine, pooling=pooling),)) as made:
        yield made


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def plain(tokens, pooling):
    """The vector by the model as it is trained, of one text without padding."""
    model, state = small_model(byte_tokenizer())
    row = jnp.asarray(tokens)[None]
    hidden = np.asarray(functional(model, state, row, whole_rows(row), method="hidden")[0])[0]
    vector = hidden[-1] if pooling == "last" else hidden.mean(0)
    return vector / np.linalg.norm(vector)


def test_vectors_are_those_of_the_plain_forward_pass(client, server, pooling):
    found = client.embeddings.create(model="small", input=TEXTS)
    tokens = [server.served.tokenizer.encode_prompt(text) for text in TEXTS]
    wanted = [plain(one, pooling) for one in tokens]
    np.testing.assert_allclose([one.embedding for one in found.data], wanted, atol=1e-5)
    assert [one.index for one in found.data] == [0, 1, 2]
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, tokens))
    assert found.model == "small"


def test_a_vector_depends_on_no_other_text_and_no_padding(client):
    together = client.embeddings.create(model="small", input=[*TEXTS, *TEXTS[::-1], "x" * 100])
    for number, text in enumerate(TEXTS):
        alone = client.embeddings.create(model="small", input=text).data[0].embedding
        for place in (number, 5 - number):
            np.testing.assert_allclose(together.data[place].embedding, alone, atol=1e-5)


def test_tokens_and_both_encodings_give_the_same_vectors(client, server):
    tokens = [server.served.tokenizer.encode_prompt(text).tolist() for text in TEXTS]
    by_text = client.embeddings.create(model="small", input=TEXTS)  # the client asks for base64
    as_floats = client.embeddings.create(model="small", input=tokens, encoding_format="float")
    one = client.embeddings.create(model="small", input=tokens[1], dimensions=16)
    np.testing.assert_array_equal(
        np.float32([row.embedding for row in as_floats.data]),
        np.float32([row.embedding for row in by_text.data]),
    )
    np.testing.assert_allclose(one.data[0].embedding, by_text.data[1].embedding, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"input": "a" * LENGTH}, "input", f"maximum context length is {LENGTH} tokens"),
        ({"input": ["a", "b" * 500]}, "input[1]", r"input\[1\] has 501"),
        ({"input": ""}, "input", "input is empty"),
        ({"input": ["a", ""]}, "input[1]", r"input\[1\] is empty"),
        ({"input": []}, "input", "input is empty"),
        ({"input": [[]]}, "input[0]", "is empty"),
        ({"input": [[1, 264]]}, "input[0]", "has token 264; the vocabulary has 264"),
        ({"input": [1, -1]}, "input[0]", "expected a text or a list of token numbers"),
        ({"input": [1, "a"]}, "input[0]", "is 1; expected a text"),
        ({"input": ["a"] * 2049}, "input", "has 2049 texts"),
        ({"input": "a", "dimensions": 8}, "dimensions", "have 16 numbers"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "expected 'float' or"),
        ({"input": "a", "extra_body": {"pooling": "max"}}, "pooling", "no field 'pooling'"),
    ],
)
def test_what_cannot_be_embedded_is_named(client, fields, param, text):
    with pytest.raises(openai.BadRequestError, match=text) as raised:
        client.embeddings.create(model="small", **fields)
    assert raised.value.param == param


def test_another_model_is_not_found_and_nothing_is_missing(client, server):
    with pytest.raises(openai.NotFoundError, match="There is no model 'large'"):
        client.embeddings.create(model="large", input="a")
    server.served.adapters = ("poems",)
    with pytest.raises(openai.BadRequestError, match="'poems' is an adapter"):
        client.embeddings.create(model="poems", input="a")
    server.served.adapters = ()
    reply = server.send("v1/embeddings", {"model": "small"})
    assert (reply.status, reply.json["error"]["param"]) == (400, "input")
    client.embeddings.create(model="small", input="a")
    metrics = server.send("metrics").text
    assert 'axcore_requests_total{path="/v1/embeddings",status="200"}' in metrics


@pytest.mark.parametrize("kind", ["adapters", "draft", "int8", "mesh", "replicas"])
def test_the_weights_of_any_engine_give_the_vectors(kind):
    """As its programs read them: packed, split, in low precision, with room for adapters."""
    tokenizer = byte_tokenizer()
    model, state = small_model(tokenizer)
    shape = {"mesh": {"model": 2}, "replicas": {"data": 2}}.get(kind)
    cfg = evolve(
        SMALL,
        num_adapters=2 if kind == "adapters" else 0,
        weights="int8" if kind == "int8" else None,
        speculation=DraftModel() if kind == "draft" else None,
    )
    draft = Draft(model=model, state=state, tokenizer=tokenizer) if kind == "draft" else None
    mesh = None if shape is None else Placement.of(model, shape).mesh
    with open_engine(model, state, tokenizer, cfg, mesh=mesh, draft=draft) as engine:
        embedder = TextEmbedder(model, engine.config, max_length=LENGTH, pooling="mean")
        tokens = [tokenizer.encode_prompt(text) for text in TEXTS]
        found = embedder.embed(engine.weights_in_use(), tokens)
    wanted = np.stack([plain(one, "mean") for one in tokens])
    np.testing.assert_allclose(found, wanted, atol=0.05 if kind == "int8" else 1e-5)


def test_new_weights_give_other_vectors(engine):
    model, state = small_model(engine.tokenizer)
    embedder = TextEmbedder(model, engine.config, max_length=LENGTH, pooling="last")
    tokens = [engine.tokenizer.encode_prompt("abc")]
    before = embedder.embed(engine.weights_in_use(), tokens)
    engine.replace_weights(model.init(1))
    after = embedder.embed(engine.weights_in_use(), tokens)
    engine.replace_weights(state)
    again = embedder.embed(engine.weights_in_use(), tokens)
    assert np.abs(before - after).max() > 0.1
    np.testing.assert_array_equal(before, again)
