"""Documents in a shuffled order: each once, found at any pair, from all over the corpus."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import built

from axcore.config import evolve
from axcore.data import StoredSource
from axcore.data.packing import shuffling
from axcore.data.packing.packing import TokenStore
from axcore.data.packing.row_layout import Concatenated
from axcore.data.packing.shuffling import (
    LARGEST,
    DocumentOrder,
    DocumentShuffle,
    Permutation,
    shuffled,
)
from axcore.errors import ConfigError, DataError


def store_of(lengths):
    """Every token is different, so that a token says where it came from."""
    bounds = np.cumsum([0, *lengths])
    return TokenStore.of([np.arange(a, b) for a, b in itertools.pairwise(bounds)])


def documents_of(pairs):
    return [tokens.tolist() for tokens in np.split(pairs.tokens, np.cumsum(pairs.counts + 1)[:-1])]


def read_all(store, key):
    num_pairs = store.num_tokens - store.num_documents
    return documents_of(DocumentOrder(store, key).read(0, num_pairs))


sizes = st.lists(st.integers(2, 9), min_size=1, max_size=60)


@given(sizes, st.integers(1, 4), st.integers(1, 3), st.text(max_size=3))
def test_every_document_comes_once_and_whole(lengths, stretches, run, key):
    store = store_of(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffling, "NUM_STRETCHES", stretches)
        patch.setattr(shuffling, "RUN", run)
        patch.setattr(shuffling, "_FAN_OUT", 2)
        found = read_all(store, key)
    expected = [list(range(a, b)) for a, b in itertools.pairwise(store.starts.tolist())]
    assert sorted(found) == expected


@given(sizes, st.integers(1, 20), st.integers(0, 10**6))
def test_any_pairs_are_those_of_the_whole_order(lengths, length, place):
    store = store_of(lengths)
    num_pairs = store.num_tokens - store.num_documents
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffling, "NUM_STRETCHES", 3)
        patch.setattr(shuffling, "RUN", 2)
        order = DocumentOrder(store, "key")
        whole = [pair for one in documents_of(order.read(0, num_pairs)) for pair in one[:-1]]
        begin = place % num_pairs
        end = min(begin + length, num_pairs)
        part = [pair for one in documents_of(order.read(begin, end)) for pair in one[:-1]]
    assert part == whole[begin:end]


def test_neighbours_come_from_all_over_the_corpus():
    """A row of 12 documents holds some of most of the 16 stretches, under every key."""
    store = store_of([5] * 6400)
    for key in "ab":
        documents = np.array([one[0] // 5 for one in read_all(store, key)])
        assert (documents != np.arange(6400)).mean() > 0.99
        rows = documents[: 6400 // 12 * 12].reshape(-1, 12) // 400
        assert np.mean([len(set(row)) for row in rows.tolist()]) > 8


def test_other_documents_meet_under_another_key():
    store = store_of([3] * 2560)

    def neighbours(key):
        documents = [one[0] // 3 for one in read_all(store, key)]
        return {frozenset(pair) for pair in itertools.pairwise(documents)}

    assert len(neighbours("one") & neighbours("two")) < 100


def test_rows_are_packed_again_each_epoch_where_that_is_asked_for():
    store = store_of(np.random.default_rng(0).integers(2, 40, 600))
    fixed, again = (
        Concatenated(store, 16, DocumentShuffle("seed", is_each_epoch=each))
        for each in (False, True)
    )
    length = len(fixed)

    def epoch(rows, number):
        return [tuple(rows.pairs(number * length + row).tokens.tolist()) for row in range(length)]

    assert epoch(fixed, 0) == epoch(fixed, 1) == epoch(again, 0)
    first, second = epoch(again, 0), epoch(again, 1)
    assert len(set(first) & set(second)) < 0.1 * length


@pytest.mark.parametrize("change", [{"shuffle": False}, {"packing": "one_document"}])
def test_rows_that_cannot_be_packed_again_are_refused(cfg, change):
    with pytest.raises(ConfigError, match="rows are the same in each epoch"):
        evolve(cfg, repacks_each_epoch=True, **change).build()


@pytest.mark.parametrize("repacks", [False, True])
def test_a_store_and_its_source_have_one_order(cfg, tmp_path, small_parts, repacks):
    cfg = evolve(cfg, repacks_each_epoch=repacks)
    assert len(built(cfg, tmp_path / "store").splits["train"].shards) > 3
    stored = evolve(cfg, source=StoredSource.Config(path=str(tmp_path / "store")))
    ours, theirs = stored.build().train(), cfg.build().train()
    for _ in range(60):
        a, b = next(ours), next(theirs)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("repacks", [False, True])
def test_processes_agree_at_any_step_resumed_twice_across_epochs(cfg, count, repacks):
    cfg = evolve(cfg, batch_size=8, repacks_each_epoch=repacks)
    epoch = cfg.build().summary().batches_per_epoch
    steps = int(2.5 * epoch)
    one = cfg.build().train()
    whole = [next(one) for _ in range(steps)]
    parts = [cfg.build().train(process_index=i, process_count=count) for i in range(count)]
    for step in range(steps):
        if step in (int(epoch), int(2 * epoch) + 1):  # resumed, by processes that start again
            states = [part.get_state() for part in parts]
            assert all(state == states[0] for state in states)
            parts = [cfg.build().train(process_index=i, process_count=count) for i in range(count)]
            for part in parts:
                part.set_state(states[0])
        batch = [next(part) for part in parts]
        for name, expected in whole[step].items():
            np.testing.assert_array_equal(np.concatenate([b[name] for b in batch]), expected)


@given(st.integers(1, 300), st.text(max_size=5))
def test_a_permutation_holds_every_number_once(size, key):
    permutation = Permutation(size, key)
    assert sorted(permutation[place] for place in range(size)) == list(range(size))


@pytest.mark.parametrize("size", [2**32 - 1, 2**32, 2**32 + 1, 2**45, LARGEST])
def test_a_permutation_of_more_than_32_bits_spreads_its_numbers(size):
    """One that shuffles only low digits would keep the beginning at the beginning."""
    permutation = Permutation(size, "key")
    found = np.array([permutation[place] / size for place in range(4000)])
    assert len(set(found)) > 3990
    assert 0 <= found.min() < found.max() < 1
    counts, _ = np.histogram(found, 16, (0, 1))
    assert abs(counts - 250).max() < 80


def test_all_orders_of_few_numbers_are_about_as_frequent():
    found = [tuple(Permutation(4, str(key))[i] for i in range(4)) for key in range(4800)]
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert abs(counts - 200).max() < 75


def test_more_rows_than_can_be_shuffled_are_refused():
    with pytest.raises(DataError, match="numbers are to be shuffled; at most 4611686018427387904"):
        Permutation(LARGEST + 1, "key")


def test_orders_of_neighbouring_keys_have_nothing_in_common():
    ranks = [np.argsort(shuffled(256, 10**18 + key)) for key in range(4)]
    for one, other in itertools.combinations(ranks, 2):
        for shift in range(-3, 4):
            assert abs(np.corrcoef(one, np.roll(other, shift))[0, 1]) < 0.3
