"""Beam search: the continuations that a search over all of them finds."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from model_server import LENGTH, byte_tokenizer, small_engine, small_model

from axcore.errors import RequestError
from axcore.inference import Request, Sampling, beam_search
from axcore.module import functional

PROMPT = (65, 66, 67)


@pytest.fixture(scope="module")
def engine():
    with small_engine(byte_tokenizer()) as made:
        yield made


@pytest.fixture(scope="module")
def logprobs():
    """Returns log-probabilities of the next token, by a plain forward pass."""
    model, state = small_model(byte_tokenizer())

    def after(tokens):
        padded = np.zeros((1, LENGTH), np.int32)
        padded[0, : len(tokens)] = tokens
        logits, _ = functional(model, state, jnp.asarray(padded), method="logits")
        found = np.asarray(logits[0, len(tokens) - 1], np.float64)
        return found - np.logaddexp.reduce(found)

    return after


@pytest.mark.slow
def test_one_beam_is_the_likeliest_token_at_each_place(engine):
    asked = Request(prompt=PROMPT, max_tokens=6, ignores_end=True)
    (found,) = beam_search(engine, asked, num_beams=1, end_ids=())
    greedy = Request(
        prompt=PROMPT, max_tokens=6, ignores_end=True, sampling=Sampling(temperature=0)
    )
    assert found.tokens == tuple(one.id for one in engine.submit(greedy).result().tokens)
    assert found.finish_reason == "length"


@pytest.mark.slow
def test_the_best_of_all_pairs_of_tokens_are_found(engine, logprobs):
    asked = Request(prompt=PROMPT, max_tokens=2)
    found = beam_search(engine, asked, num_beams=8, end_ids=(), length_penalty=0.0)
    first = logprobs(PROMPT)
    likely = np.argsort(-first)[:8]
    after = {int(token): logprobs((*PROMPT, int(token))) for token in likely}
    pairs = itertools.product(after, range(len(first)))
    best = sorted(pairs, key=lambda pair: -first[pair[0]] - after[pair[0]][pair[1]])[:8]
    assert [one.tokens for one in found] == best
    sums = [first[a] + after[a][b] for a, b in best]
    np.testing.assert_allclose([one.logprob for one in found], sums, rtol=1e-5)
    assert [one.score for one in found] == [one.logprob for one in found]


@pytest.mark.slow
def test_an_end_is_a_token_of_the_sum_and_not_of_the_text(engine, logprobs):
    end = int(np.argmax(logprobs(PROMPT)))  # so that the best continuation is to end at once
    asked = Request(prompt=PROMPT, max_tokens=3)
    best, *_ = beam_search(engine, asked, num_beams=2, end_ids=(end,), length_penalty=-4.0)
    assert (best.tokens, best.finish_reason) == ((), "stop")
    assert best.logprob == pytest.approx(logprobs(PROMPT)[end], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "beams", "match"),
    [
        ({}, 11, "num_beams is 11; expected 1 to 10"),
        ({"max_tokens": 126}, 2, r"has 3 tokens, and max_tokens is 126; (.|\n)*max_tokens to 125"),
        ({"max_tokens": 0}, 2, "max_tokens is 0; expected 1 or more"),
        ({"stop": ("a",)}, 2, "a beam search takes no stop"),
        ({"sampling": Sampling(top_k=2)}, 2, "a beam search takes no sampling"),
    ],
)
def test_what_a_search_cannot_do_is_refused(engine, fields, beams, match):
    asked = Request(**{"prompt": PROMPT, "max_tokens": 3, **fields})
    with pytest.raises(RequestError, match=match):
        beam_search(engine, asked, num_beams=beams, end_ids=())
