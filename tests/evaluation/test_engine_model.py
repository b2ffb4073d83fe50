"""Likelihoods that the engine finds are those of the plain model, whatever else is asked."""

import jax.numpy as jnp
import numpy as np
import pytest
from model_server import LENGTH, byte_tokenizer, small_engine, small_model

from axcore.errors import ConfigError
from axcore.evaluation import Continuation, EngineModel, Likelihood, TextLikelihood
from axcore.module import functional

TEXT = "def area(width, height):\n    return width * height\n" * 6


@pytest.fixture(scope="module")
def asked():
    with small_engine(byte_tokenizer()) as engine:
        yield EngineModel(engine)


@pytest.fixture(scope="module")
def logprobs():
    """Returns the log-probabilities of all tokens after the first, by the plain model."""
    model, state = small_model(byte_tokenizer())

    def of(tokens):
        padded = np.zeros((1, LENGTH), np.int32)
        padded[0, : len(tokens)] = tokens
        logits, _ = functional(model, state, jnp.asarray(padded), method="logits")
        logits = np.asarray(logits[0, : len(tokens) - 1], np.float64)
        found = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return found[np.arange(len(tokens) - 1), tokens[1:]]

    return of


@pytest.mark.slow
def test_a_continuation_has_the_likelihood_that_the_plain_model_gives_it(asked, logprobs):
    pairs = [("def area(", "width"), ("a ", "b"), ("x = ", " longer than others"), ("", "alone")]
    pending = [asked.ask(Likelihood(context=one, continuation=two)) for one, two in pairs]
    for (context, continuation), one in zip(pairs, pending, strict=True):
        found = one.reply(60)
        tokens = asked.tokenizer.encode_prompt(context + continuation)
        assert context or tokens[0] == asked.tokenizer.bos_id
        scored = len((context[len(context.rstrip()) :] + continuation).encode())
        assert found.num_tokens == scored
        assert found.logprob == pytest.approx(logprobs(tokens)[-scored:].sum(), abs=1e-3)


@pytest.mark.slow
def test_a_long_text_is_scored_once_each_token_with_the_context_of_its_window(asked, logprobs):
    found = asked.ask(TextLikelihood(text=TEXT)).reply(60)
    tokens = asked.tokenizer.encode_prompt(TEXT)
    step, total = asked.longest - 1, 0.0
    for begin in range(0, len(tokens) - 1, step):
        is_last = begin + asked.longest >= len(tokens)
        window = tokens[-asked.longest :] if is_last else tokens[begin : begin + asked.longest]
        total += logprobs(window)[-min(step, len(tokens) - 1 - begin) :].sum()
    assert found.num_tokens == len(TEXT)
    assert found.logprob == pytest.approx(total, abs=1e-2)


@pytest.mark.slow
def test_what_is_too_long_loses_its_beginning_and_says_so(asked, logprobs):
    found = asked.ask(Likelihood(context=TEXT, continuation="end")).reply(60)
    tokens = asked.tokenizer.encode_prompt(TEXT.rstrip() + "\nend")
    assert found.num_cut == len(tokens) - asked.longest
    expected = logprobs(tokens[-asked.longest :])[-4:].sum()
    assert found.logprob == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_an_answer_longer_than_the_model_reads_is_refused(asked):
    with pytest.raises(ConfigError, match=f"max_tokens is {LENGTH}, and the model reads {LENGTH}"):
        asked.ask(Continuation(prompt="a", max_tokens=LENGTH))
