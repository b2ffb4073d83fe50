"""Samples follow the distribution that a plain reference computes, whatever the other rows are."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from axcore.errors import ConfigError
from axcore.inference import Sampling
from axcore.inference.request import kind_for
from axcore.inference.sampler import (
    TokenHistory,
    empty_history,
    log_probabilities,
    packed_mask,
    processed_logits,
    row_keys,
    sample,
    sampling_rows,
    scaled_logits,
)

VOCAB = 37


def reference(logits, sampling, prompt=(), answer=(), allowed=None):
    """Returns the probability of each token: one row, one token at a time, by sorting."""
    logits = [float(x) for x in logits]
    for token in range(len(logits)):
        if token in prompt or token in answer:
            factor = sampling.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        count = list(answer).count(token)
        logits[token] -= sampling.frequency_penalty * count
        logits[token] -= sampling.presence_penalty * (count > 0)
        logits[token] += dict(sampling.logit_bias).get(token, 0.0)
        if allowed is not None and not allowed[token]:
            logits[token] = -math.inf
    if sampling.temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    weights = {t: math.exp((x - max(logits)) / sampling.temperature) for t, x in enumerate(logits)}
    order = sorted(weights, key=lambda t: -weights[t])
    order = order[: sampling.top_k]
    total, kept = sum(weights[t] for t in order), []
    for token in order:
        if sampling.top_p < 1 and sum(weights[t] for t in kept) >= sampling.top_p * total:
            break
        kept.append(token)
    kept = [t for t in kept if weights[t] >= sampling.min_p * weights[order[0]]]
    probabilities = np.zeros(len(logits))
    probabilities[kept] = [weights[t] for t in kept]
    return probabilities / probabilities.sum()


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.none() | st.integers(1, VOCAB + 3),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.9),
    repetition_penalty=st.floats(0.5, 2.0),
    presence_penalty=st.floats(-2.0, 2.0),
    frequency_penalty=st.floats(-2.0, 2.0),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5.0, 5.0), max_size=4).map(
        lambda biases: tuple(biases.items())
    ),
)


def history_of(texts, vocab=VOCAB):
    width = max(len(prompt) + len(answer) for prompt, answer in texts) or 1
    tokens = np.zeros((len(texts), width), np.int32)
    for row, (prompt, answer) in enumerate(texts):
        tokens[row, : len(prompt) + len(answer)] = [*prompt, *answer]
    lengths = np.array([(len(p), len(p) + len(a)) for p, a in texts], np.int32)
    slots = jnp.arange(len(texts))
    return empty_history(len(texts), vocab).started(slots, tokens, lengths=jnp.asarray(lengths))


@jax.jit
def distribution(logits, rows, history, allowed):
    changed = processed_logits(logits, rows, allowed=allowed, history=history)
    return jax.nn.softmax(scaled_logits(changed, rows), axis=1)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, phases=[Phase.generate])
@given(samplings=st.lists(samplings, min_size=4, max_size=4), seed=st.integers(0, 2**31))
def test_rows_are_drawn_from_what_a_plain_reference_computes(samplings, seed):
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (4, VOCAB)).astype(np.float32)
    allowed = random.random((4, VOCAB)) < 0.7
    allowed[:, 5] = True
    texts = [(random.integers(0, VOCAB, 6), random.integers(0, VOCAB, 9)) for _ in range(4)]
    rows = sampling_rows(samplings)
    found = distribution(logits, rows, history_of(texts), packed_mask(allowed))
    for row, (prompt, answer) in enumerate(texts):
        expected = reference(logits[row], samplings[row], prompt, answer, allowed[row])
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def drawn_counts(logits, sampling, count=20_000, **inputs):
    rows = sampling_rows([sampling]).take(np.zeros(count, int))
    keys = row_keys(rows.seed, jnp.arange(count))
    many = jnp.broadcast_to(jnp.asarray(logits), (count, len(logits)))
    kind = kind_for([sampling])
    tokens = jax.jit(sample, static_argnames="kind")(many, rows, keys, kind=kind, **inputs)
    return np.bincount(np.asarray(tokens), minlength=len(logits))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.5),
        Sampling(temperature=1.3, top_k=5),
        Sampling(temperature=1.0, top_p=0.8),
        Sampling(temperature=2.0, min_p=0.2, logit_bias=((3, 2.0),)),
    ],
    ids=str,
)
def test_frequencies_of_draws_pass_a_chi_square_test(sampling):
    logits = np.random.default_rng(0).normal(0, 1.5, 12).astype(np.float32)
    counts = drawn_counts(logits, sampling)
    expected = reference(logits, sampling) * counts.sum()
    kept = expected > 0
    assert counts[~kept].sum() == 0
    assert chisquare(counts[kept], expected[kept]).pvalue > 1e-3


def test_a_temperature_of_zero_takes_the_likeliest_of_what_is_left():
    logits = np.array([1.0, 5.0, 4.0, 3.0], np.float32)
    allowed = packed_mask(np.array([[True, False, True, True]]))
    counts = drawn_counts(logits, Sampling(temperature=0), 50, allowed=allowed)
    assert counts.tolist() == [0, 0, 50, 0]
    biased = drawn_counts(logits, Sampling(temperature=0, logit_bias=((3, 3.0),)), 50)
    assert biased.tolist() == [0, 0, 0, 50]


MIXED = [
    Sampling(temperature=0),
    Sampling(temperature=1.0),
    Sampling(temperature=1.0, top_p=0.7, min_p=0.05),
    Sampling(temperature=3.0, top_k=9),
    Sampling(temperature=1.5, repetition_penalty=1.4, presence_penalty=0.5, logit_bias=((1, 3.0),)),
]


def draws_of(order, logits, steps=15):
    """Returns what each request samples when the rows are in some order."""
    rows = sampling_rows([MIXED[i] for i in order], [7 * i + (i << 40) for i in order])
    history, tokens = history_of([((1, 2), (4, 4)) for _ in order]), []
    for step in range(steps):
        keys = row_keys(rows.seed, jnp.full(len(order), step))
        tokens.append(DRAW(logits[step][np.asarray(order)], rows, keys, history=history))
    return dict(zip(order, np.stack(tokens, 1).tolist(), strict=True))


DRAW = jax.jit(sample)


@pytest.mark.slow
def test_a_row_draws_the_same_whatever_is_beside_it():
    logits = np.random.default_rng(3).normal(0, 2, (15, 5, VOCAB)).astype(np.float32)
    whole = draws_of([0, 1, 2, 3, 4], logits)
    turned = draws_of([4, 2, 0, 3, 1], logits)
    assert turned == whole
    for alone in range(5):
        assert draws_of([alone], logits)[alone] == whole[alone]
    assert len(set(whole[3])) > 5


def test_both_halves_of_a_seed_and_the_index_change_what_is_drawn():
    seeds = [0, 1, 1 << 32, (1 << 32) + 1, 2**64 - 1]
    rows = sampling_rows([Sampling(temperature=9.0)] * 5, seeds)
    logits = jnp.zeros((5, 100_000))
    first, second = (DRAW(logits, rows, row_keys(rows.seed, jnp.full(5, i))) for i in (0, 1))
    assert len({*first.tolist(), *second.tolist()}) == 10


def test_equally_likely_tokens_are_kept_or_dropped_together():
    rows = sampling_rows([Sampling(temperature=1.0, top_k=2), Sampling(temperature=1.0, top_p=0.3)])
    logits = jnp.asarray([[2.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    kept = np.isfinite(scaled_logits(logits, rows))
    assert kept.tolist() == [[True, True, True, False], [True] * 4]


@pytest.mark.slow
def test_kinds_of_programs_draw_alike_where_both_can():
    logits = np.random.default_rng(1).normal(0, 2, (64, VOCAB)).astype(np.float32)
    hot = sampling_rows([Sampling(temperature=1.2)] * 64, list(range(64)))
    keys = row_keys(hot.seed, jnp.zeros(64, jnp.int32))
    np.testing.assert_array_equal(
        sample(logits, hot, keys), sample(logits, hot, keys, kind="plain")
    )
    cold = sampling_rows([Sampling(temperature=0)] * 64)
    top_tokens = logits.argmax(axis=1)
    for kind in ("greedy", "plain", "full"):
        np.testing.assert_array_equal(sample(logits, cold, keys, kind=kind), top_tokens)


def test_the_cheapest_kind_that_serves_all_rows_is_chosen():
    assert kind_for([Sampling(temperature=0), Sampling(temperature=0, top_k=3)]) == "greedy"
    assert kind_for([Sampling(temperature=0), Sampling(temperature=1)]) == "plain"
    for full in (
        Sampling(top_k=3),
        Sampling(min_p=0.1),
        Sampling(temperature=0, frequency_penalty=0.1),
        Sampling(temperature=0, logit_bias=((1, 1.0),)),
    ):
        assert kind_for([Sampling(temperature=1), full]) == "full"


@pytest.mark.slow
def test_histories_follow_each_slot():
    history = empty_history(3, 6)
    lengths = jnp.asarray([[2, 3], [1, 1]])
    tokens = jnp.asarray([[1, 2, 1], [5, 0, 0]])
    history = history.started(jnp.asarray([2, 9]), tokens, lengths=lengths)
    history = history.sampled(jnp.asarray([2, 0, 9]), jnp.asarray([1, 4, 4]))
    assert history.is_prompted.astype(int).tolist() == [[0] * 6, [0] * 6, [0, 1, 1, 0, 0, 0]]
    expected = [[0, 0, 0, 0, 1, 0], [0] * 6, [0, 2, 0, 0, 0, 0]]
    assert history.num_sampled.tolist() == expected
    again = history.started(jnp.asarray([2]), tokens[1:], lengths=lengths[1:])
    assert again.is_prompted[2].astype(int).tolist() == [0, 0, 0, 0, 0, 1]
    assert again.num_sampled[2].tolist() == [0] * 6
    assert isinstance(again.take(jnp.asarray([2])), TokenHistory)


def test_log_probabilities_are_those_of_the_model_alone():
    logits = np.random.default_rng(2).normal(0, 2, (3, VOCAB)).astype(np.float32)
    sampled = np.array([4, 0, 36], np.int32)
    found = log_probabilities(jnp.asarray(logits), jnp.asarray(sampled), 3)
    whole = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found.sampled, whole[np.arange(3), sampled], atol=1e-5)
    np.testing.assert_array_equal(found.top_tokens, np.argsort(-whole, axis=1)[:, :3])
    np.testing.assert_allclose(found.top_logprobs, -np.sort(-whole, axis=1)[:, :3], atol=1e-5)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"temperature": -1.0}, "temperature is -1.0; expected a finite number of 0 or more"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0; expected 1 or more"),
        ({"top_p": 0.0}, "top_p is 0.0; expected above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1; expected 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; expected a finite number above"),
        ({"presence_penalty": 3.0}, "presence_penalty is 3.0; expected -2 to 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty is -2.5"),
        ({"logit_bias": ((50, 1.0),)}, "token 50; expected 0 or more and less than 37"),
        ({"logit_bias": ((-1, 1.0),)}, "token -1"),
        ({"logit_bias": ((1, 1.0), (1, 2.0))}, "names a token twice: .1, 1."),
        ({"logit_bias": ((1, 101.0),)}, "token 1 is 101.0; expected -100 to 100"),
        ({"logit_bias": tuple((i, 1.0) for i in range(301))}, "301 tokens; expected at most 300"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(values, text):
    with pytest.raises(ConfigError, match=text) as caught:
        Sampling(**values).check(VOCAB)
    assert caught.value.hint


@pytest.mark.parametrize("special", [np.nan, np.inf, 5.0, -np.inf])
def test_the_first_of_equally_likely_tokens_is_drawn_as_argmax_has_it(special):
    """Of rows of nothing else, too: a token is always one of the vocabulary."""
    logits = np.random.default_rng(0).standard_normal((4, VOCAB)).astype(np.float32)
    logits[0, [7, 9]] = logits[1, 3] = logits[2, -1] = special
    logits[3] = special
    rows = sampling_rows([Sampling(temperature=0.0)] * 4)
    sampled = sample(jnp.asarray(logits), rows, row_keys(rows.seed, jnp.zeros(4, jnp.int32)))
    assert sampled.tolist() == np.argmax(logits, axis=1).tolist()


def test_a_top_k_of_more_tokens_than_numbers_hold_draws_from_all():
    rows = sampling_rows([Sampling(top_k=2**40), Sampling(top_k=None)])
    assert rows.top_k[0] == rows.top_k[1]
