"""What ends a text besides the model's own end token, and what may not."""

import pytest
from model_server import byte_tokenizer, ending_engine, small_engine

from axcore.errors import RequestError
from axcore.inference import Request, Sampling
from axcore.inference.grammar import regex

GREEDY = Sampling(temperature=0)
PROMPT = (256, *b"ab")


@pytest.fixture(scope="module")
def engine():
    with small_engine(byte_tokenizer()) as made:
        yield made


@pytest.fixture(scope="module")
def ending():
    with ending_engine(byte_tokenizer()) as made:
        yield made


def answer(engine, **fields):
    asked = {"prompt": PROMPT, "max_tokens": 12, "sampling": GREEDY, **fields}
    return engine.submit(Request(**asked)).result(60)


def test_a_token_ends_a_text_where_a_request_says_so(engine):
    tokens = [token.id for token in answer(engine, num_logprobs=0).tokens]
    stop = tokens[3]
    first = tokens.index(stop)
    found = answer(engine, stop_tokens=(stop,), num_logprobs=0)
    assert ([one.id for one in found.tokens], found.end.id) == (tokens[:first], stop)
    assert found.finish_reason == "stop"
    shown = answer(engine, stop_tokens=(stop,), includes_stop=True)
    assert shown.text == engine.tokenizer.decode(tokens[: first + 1])
    assert [one.id for one in shown.tokens] == tokens[:first]


def test_a_text_ends_behind_a_stop_string_where_it_is_wanted(engine):
    text = answer(engine).text
    stop = text[4:6]
    place = text.index(stop)
    assert answer(engine, stop=(stop,)).text == text[:place]
    assert answer(engine, stop=(stop,), includes_stop=True).text == text[: place + len(stop)]


def test_a_text_has_the_tokens_that_are_wanted_before_it_ends(ending):
    assert answer(ending).tokens == ()
    for number in (1, 5):
        found = answer(ending, min_tokens=number)
        assert (len(found.tokens), found.finish_reason) == (number, "stop")
    found = answer(ending, min_tokens=12)
    assert (len(found.tokens), found.finish_reason) == (12, "length")


def test_neither_stop_tokens_nor_stop_strings_end_a_text_too_soon(engine):
    plain = answer(engine)
    stop = plain.tokens[0].id
    found = answer(engine, stop_tokens=(stop,), min_tokens=4)
    assert len(found.tokens) >= 4
    assert stop not in [one.id for one in found.tokens[:4]]
    found = answer(engine, stop=(plain.text[0],), min_tokens=4)
    assert len(found.tokens) >= 4
    assert found.text.startswith(plain.text[:4])


def test_a_grammar_that_ends_is_the_end_all_the_same(engine):
    found = answer(engine, grammar=regex("abc"), min_tokens=6)
    assert (found.text, found.finish_reason) == ("abc", "stop")


def test_ends_that_cannot_be_are_refused(engine):
    for fields, text in (
        ({"stop_tokens": (10**6,)}, "stop_tokens has token 1000000"),
        ({"min_tokens": 13}, "min_tokens is 13, and max_tokens 12"),
    ):
        with pytest.raises(RequestError, match=text):
            answer(engine, **fields)
