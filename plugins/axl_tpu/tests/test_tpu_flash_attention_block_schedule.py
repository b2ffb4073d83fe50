"""The walk of flash attention on TPU: each visible pair is computed once, hidden blocks are not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_tpu.kernels.attention import block_schedule as attention_visits
from axl_tpu.kernels.attention.block_schedule import (
    FIRST,
    LAST,
    LIVE,
    MASKED,
    Blocking,
    block_schedule,
    key_block,
    query_block,
)

from axcore.errors import KernelError
from axcore.ops import AttentionInputs, AttentionSpec
from axcore.ops.attention.mask import columns, rows, visible

BATCH, QUERIES, KEYS = 3, 700, 900
BLOCK_Q, BLOCK_K = 128, 256


def call(**parts):
    q, k = jnp.zeros((BATCH, QUERIES, 1, 8)), jnp.zeros((BATCH, KEYS, 1, 8))
    return AttentionInputs(q, k, k)._replace(**parts)


def numbers(seed, low, high, length):
    drawn = np.random.default_rng(seed).integers(low, high, (BATCH, length))
    return jnp.asarray(drawn, jnp.int32)


def packed(length):
    """Documents of uneven length, other cuts in each row, then padding."""
    ids = 1 + jnp.cumsum(numbers(0, 0, 150, length) == 0, axis=1)
    return jnp.where(jnp.arange(length)[None] < length - 20, ids, 0)


def ranges():
    start = numbers(1, 0, KEYS, QUERIES)
    end = start + numbers(2, -5, 200, QUERIES)
    return {"k_start_BT": start, "k_end_BT": jnp.minimum(end, KEYS)}


def segments(seed=None):
    """Packed documents; with a seed, ids without any order."""
    if seed is None:
        return {"q_segments_BT": packed(QUERIES), "k_segments_BS": packed(KEYS)}
    lengths = {"q_segments_BT": QUERIES, "k_segments_BS": KEYS}
    return {name: numbers(seed, -1, 3, length) for name, length in lengths.items()}


OFFSET = {"query_offset_B": jnp.asarray([0, 130, 500], jnp.int32)}
CASES = {
    "full": ({}, {}),
    "causal": ({"right": 0}, {}),
    "causal_in_front": ({"right": 0, "query_offset": -300}, {}),
    "window": ({"left": 40, "right": 30}, {}),
    "narrow": ({"left": 0, "right": 0}, {}),
    "documents": ({"right": 0}, segments()),
    "mixed_ids": ({}, segments(seed=3)),
    "ranges": ({}, ranges()),
    "offsets": ({"left": 90, "right": 5}, OFFSET),
    "everything": (
        {"left": 300, "right": 20, "query_offset": -7},
        {**segments(), **ranges(), **OFFSET},
    ),
}


def seen_by(inputs, spec):
    mask = visible(spec, rows(inputs, spec), columns(inputs))
    shape = (BATCH, 1, 1, QUERIES, KEYS)
    mask = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
    return mask[:, 0, 0]


@functools.cache
def walk_of(name, by_keys):
    choices, parts = CASES[name]
    inputs, spec = call(**parts), AttentionSpec(scale=1.0, **choices)
    cut = Blocking.of(inputs, BLOCK_Q, BLOCK_K)
    walk = jax.jit(lambda given: block_schedule(given, spec, cut, by_keys=by_keys))(inputs)
    codes = np.asarray(walk.codes_BP)[:, : int(walk.num_steps)]
    return seen_by(inputs, spec), np.broadcast_to(codes, (BATCH, codes.shape[1])), cut


def block(seen, code):
    i, j = int(query_block(code)), int(key_block(code))
    return np.s_[i * BLOCK_Q : (i + 1) * BLOCK_Q, j * BLOCK_K : (j + 1) * BLOCK_K]


@pytest.mark.parametrize("by_keys", [False, True], ids=["by_queries", "by_keys"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick_one_in(8)
def test_each_visible_pair_is_in_one_live_visit_and_unmasked_visits_hide_none(name, by_keys):
    seen, codes, _ = walk_of(name, by_keys)
    for row in range(BATCH):
        times = np.zeros(seen[row].shape, int)
        for code in codes[row]:
            if code & LIVE:
                at = block(seen[row], code)
                times[at] += 1
                if not code & MASKED:
                    assert seen[row][at].shape == (BLOCK_Q, BLOCK_K)
                    assert seen[row][at].all()
        assert (times[seen[row]] == 1).all()
        assert times.max() <= 1


@pytest.mark.parametrize("by_keys", [False, True], ids=["by_queries", "by_keys"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick_one_in(8)
def test_outer_blocks_come_one_after_another_with_one_first_and_one_last_visit(name, by_keys):
    _, codes, cut = walk_of(name, by_keys)
    outer_of, num = (key_block, cut.keys.num) if by_keys else (query_block, cut.queries.num)
    for row in codes:
        first, last = (
            [int(outer_of(code)) for code in row if code & flag] for flag in (FIRST, LAST)
        )
        assert first == last == list(range(num))
        outer = [int(outer_of(code)) for code in row]
        assert outer == sorted(outer)


def test_blocks_of_other_documents_are_not_visited():
    alone, packed_codes = (
        walk_of("causal", by_keys=False)[1],
        walk_of("documents", by_keys=False)[1],
    )
    live = [int(np.sum(codes & LIVE != 0)) for codes in (alone, packed_codes)]
    assert live[1] < 0.75 * live[0]


@pytest.mark.slow
def test_steps_past_a_rows_own_visits_stay_at_its_last_blocks_and_do_nothing():
    inputs = call(**CASES["ranges"][1])._replace(
        k_end_BT=ranges()["k_end_BT"].at[1:].set(0)  # only the first row sees anything
    )
    cut = Blocking.of(inputs, BLOCK_Q, BLOCK_K)
    walk = block_schedule(inputs, AttentionSpec(scale=1.0), cut, by_keys=False)
    row = np.asarray(walk.codes_BP)[1, : int(walk.num_steps)]
    assert np.sum(row & LIVE != 0) == 0
    assert np.sum(row & FIRST != 0) == cut.queries.num
    assert len(row) > cut.queries.num
    assert (row[cut.queries.num :] == row[cut.queries.num]).all()
    assert int(query_block(row[-1])) == cut.queries.num - 1


def test_more_visits_than_scalar_memory_holds_are_an_error(monkeypatch):
    monkeypatch.setattr(attention_visits, "MAX_SCHEDULE_STEPS", 20)
    with pytest.raises(KernelError, match=r"3 rows of \d+ pairs of blocks are on one device"):
        walk_of.__wrapped__("documents", by_keys=False)
