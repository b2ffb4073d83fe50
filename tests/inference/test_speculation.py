"""Draft tokens change how fast tokens come, never which."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from axcore.errors import ConfigError
from axcore.inference import Sampling
from axcore.inference.sampler import (
    empty_history,
    packed_mask,
    row_keys,
    sample,
    sampling_rows,
    scaled_logits,
)
from axcore.inference.speculation import NGramDrafter, NGramLookup, verify_draft_tokens

VOCAB, ROWS, NUM_DRAFTS = 6, 30_000, 3
RANDOM = np.random.default_rng(0)
TABLE = jnp.asarray(RANDOM.normal(0, 1.5, (VOCAB, VOCAB)), jnp.float32)
"""Logits after each token, of the model."""
DRAFT = TABLE + jnp.asarray(RANDOM.normal(0, 0.7, (VOCAB, VOCAB)), jnp.float32)
"""Those of a drafting model."""
START = 2
SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=3),
    Sampling(temperature=1.4, top_p=0.8),
]


def rows_of(sampling, count=ROWS):
    rows = sampling_rows([sampling]).take(np.zeros(count, int))
    seeds = np.stack([np.arange(count), np.zeros(count)], axis=1).astype(np.uint32)
    return jax.tree.map(jnp.asarray, rows._replace(seed=seeds))


@jax.jit
def chain(table, rows):
    """Returns the tokens that are sampled one after the other, `[B, NUM_DRAFTS + 1]`."""
    last, sampled = jnp.full(len(rows.seed), START), []
    for index in range(NUM_DRAFTS + 1):
        last = sample(table[last], rows, row_keys(rows.seed, jnp.full(len(last), index)))
        sampled.append(last)
    return jnp.stack(sampled, axis=1)


@jax.jit
def verified(draft_tokens, rows):
    known = jnp.concatenate([jnp.full((len(draft_tokens), 1), START), draft_tokens], axis=1)
    zeros = jnp.zeros(len(draft_tokens), jnp.int32)
    count = jnp.full(len(draft_tokens), NUM_DRAFTS)
    return verify_draft_tokens(
        TABLE[known], draft_tokens, rows, first=zeros, num_draft_tokens=count
    )


def random_guesses(rows):
    """Returns draft tokens that do not depend on what is sampled, as those from the text."""
    return jax.random.randint(jax.random.key(9), (len(rows.seed), NUM_DRAFTS), 0, VOCAB)


def drafted_guesses(rows):
    return chain(DRAFT, rows)[:, :NUM_DRAFTS]


@pytest.mark.parametrize("sampling", [*SAMPLINGS, Sampling(temperature=0)], ids=str)
@pytest.mark.parametrize("propose", [random_guesses, drafted_guesses])
def test_tokens_are_those_of_plain_decoding(sampling, propose):
    rows = rows_of(sampling, 500)
    found, plain = verified(propose(rows), rows), np.asarray(chain(TABLE, rows))
    taken = np.arange(NUM_DRAFTS + 1) < np.asarray(found.counts)[:, None]
    np.testing.assert_array_equal(np.where(taken, found.tokens, -1), np.where(taken, plain, -1))
    assert len(set(np.asarray(found.counts).tolist())) > 1 or sampling.temperature == 0


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("propose", [random_guesses, drafted_guesses])
@pytest.mark.quick_one_in(6)
def test_pairs_of_tokens_pass_a_chi_square_test(sampling, propose):
    rows = rows_of(sampling)
    draft_tokens = propose(rows)
    found = verified(draft_tokens, rows)
    first, second = np.asarray(found.tokens[:, 0]), np.asarray(found.tokens[:, 1])
    whole = jax.nn.softmax(scaled_logits(TABLE, rows_of(sampling, VOCAB)), axis=1)
    expected = np.asarray(whole[START])[:, None] * np.asarray(whole)
    # The second token counts where the first draft token was right; that is decided before it is
    # sampled.
    right = np.asarray(found.counts) > 1
    for start in range(VOCAB):
        counts = np.bincount(second[right & (first == start)], minlength=VOCAB)
        _assert_drawn_from(counts, np.asarray(whole[start]))
    _assert_drawn_from(np.bincount(first, minlength=VOCAB), expected.sum(axis=1))


def _assert_drawn_from(counts, probabilities):
    probabilities = probabilities.astype(np.float64)
    kept = probabilities * counts.sum() > 5
    assert counts[probabilities == 0].sum() == 0
    if kept.sum() > 1:
        expected = probabilities[kept] / probabilities[kept].sum() * counts[kept].sum()
        assert chisquare(counts[kept], expected).pvalue > 1e-4


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.quick_one_in(3)
def test_a_drafting_model_is_right_as_often_as_the_bound_says(sampling):
    rows = rows_of(sampling)
    draft_tokens = drafted_guesses(rows)
    p, q = (
        np.asarray(jax.nn.softmax(scaled_logits(table, rows_of(sampling, VOCAB)), axis=1))[START]
        for table in (TABLE, DRAFT)
    )
    distance = 0.5 * np.abs(p - q).sum()
    share = float((np.asarray(verified(draft_tokens, rows).counts) > 1).mean())
    assert share > (1 - distance) / (1 + distance) - 0.01
    assert share < 1 - distance + 0.01
    same = verified(chain(TABLE, rows)[:, :NUM_DRAFTS], rows)
    assert set(np.asarray(same.counts).tolist()) == {NUM_DRAFTS + 1}


@pytest.mark.slow
def test_only_guesses_that_there_are_count():
    rows = rows_of(Sampling(temperature=0), 3)
    plain = chain(TABLE, rows)
    known = jnp.concatenate([jnp.full((3, 1), START), plain[:, :NUM_DRAFTS]], axis=1)
    found = verify_draft_tokens(
        TABLE[known],
        plain[:, :NUM_DRAFTS],
        rows,
        first=jnp.zeros(3, jnp.int32),
        num_draft_tokens=jnp.asarray([0, 1, 3]),
    )
    assert found.counts.tolist() == [1, 2, 4]


@pytest.mark.slow
def test_penalties_count_the_guesses_before_and_masks_hold_at_each_place():
    rows = rows_of(Sampling(temperature=0, presence_penalty=2.0), 1)
    logits = jnp.asarray([[0.0, 3.0, 2.0, 2.5]] * 4)[None]
    history = empty_history(1, 4)
    mask = packed_mask(np.array([[True, True, True, False]]))
    found = verify_draft_tokens(
        logits,
        jnp.asarray([[1, 2, 1]]),
        rows,
        first=jnp.zeros(1, jnp.int32),
        num_draft_tokens=jnp.asarray([3]),
        allowed=mask,
        history=history,
    )
    assert found.tokens.tolist() == [[1, 2, 1, 1]]
    assert found.counts.tolist() == [4]


def naive(text, cfg):
    """Returns the draft tokens of a search backwards, the longest run first."""
    for length in range(cfg.longest, cfg.shortest - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[-length:]:
                grown, place = list(text), start + length
                for _ in range(cfg.num_tokens):
                    grown.append(grown[place])
                    place += 1
                return grown[len(text) :]
    return []


@given(text=st.lists(st.integers(0, 2), max_size=25), data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_guess_is_what_followed_the_last_tokens_before(text, data):
    cfg = NGramLookup(num_tokens=5, longest=data.draw(st.integers(2, 4)), shortest=2)
    cut = data.draw(st.integers(0, len(text)))
    index = NGramDrafter(cfg, text[:cut])
    index.push(text[cut:])
    assert index.propose() == naive(text, cfg)


def test_lengths_that_exclude_each_other_are_refused():
    with pytest.raises(ConfigError, match="shortest is 3, and longest 2"):
        NGramLookup(longest=2, shortest=3).check()
