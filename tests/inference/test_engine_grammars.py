"""Answers of an engine match their grammars, whatever else runs."""

import json
import re

import pytest

from axcore.data import ByteTokenizer
from axcore.inference import Engine, EngineConfig, Request, RequestError, Sampling
from axcore.inference.grammar import json_schema, regex
from axcore.models import transformer

TOKENIZER = ByteTokenizer.Config().build()
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 999}, "k": {"enum": ["é", "b"]}},
    "required": ["n", "k"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
HOT = Sampling(temperature=2.0)


def opened(**values):
    model = transformer(vocab_size=264, dim=16, num_layers=1, num_heads=2, hidden_dim=16).build()
    sizes = {"max_num_seqs": 4, "max_length": 64, "page_size": 8, "max_num_batched_tokens": 19}
    cfg = EngineConfig(**{**sizes, "batch_size_buckets": (4,), "num_decode_steps": 4, **values})
    return Engine(model, model.init(0), TOKENIZER, cfg)


@pytest.fixture(scope="module")
def engine():
    with opened() as engine:
        yield engine


def request(grammar, seed=0, **values):
    return Request(
        prompt=tuple(b"x"), max_tokens=60, sampling=HOT, seed=seed, grammar=grammar, **values
    )


@pytest.mark.slow
def test_answers_match_their_grammars_beside_answers_without(engine):
    pattern = r"(ab|é){2,5}-[0-9]{4}"
    asked = [request(json_schema(SCHEMA), seed) for seed in range(4)]
    asked += [request(regex(pattern), seed) for seed in range(4)]
    asked += [request(None, seed) for seed in range(3)]
    found = [answer.result(120) for answer in [engine.submit(one) for one in asked]]
    for answer in found[:4]:
        assert answer.finish_reason == "stop"
        assert set(json.loads(answer.text)) == {"n", "k"}
    for answer in found[4:8]:
        assert re.fullmatch(pattern, answer.text)
    alone = [engine.submit(one).result(120) for one in (asked[0], asked[5], asked[9])]
    # Not what was cached of their prompts, which depends on who came before.
    assert [one.tokens for one in alone] == [found[i].tokens for i in (0, 5, 9)]


def test_a_grammar_that_is_wrong_is_refused_at_once(engine):
    with pytest.raises(RequestError, match="no regular expression that can be followed"):
        engine.submit(request(regex("[a")))


def test_calls_of_fixed_shapes_take_no_grammar():
    with opened(fixed_shapes=True) as engine, pytest.raises(RequestError, match="fixed_shapes"):
        engine.submit(request(regex("a")))
