"""Packings that leave documents whole: each is in one row, and few rows have room left."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import built

from axcore.config import evolve
from axcore.data import StoredSource
from axcore.data.packing import row_layout as module
from axcore.data.packing.packing import PackedRows, TokenStore
from axcore.data.packing.row_layout import row_layout
from axcore.data.packing.shuffling import DocumentShuffle
from axcore.errors import DataError

lengths = st.lists(st.integers(2, 90), min_size=1, max_size=30)


def store_of(lengths):
    """Every token is different, so that a token says where it came from."""
    bounds = np.cumsum([0, *lengths])
    return TokenStore.of([np.arange(a, b) for a, b in itertools.pairwise(bounds)])


def rows_of(store, seq_len, packing, cache="unused"):
    layout = row_layout(store, seq_len, packing, cache=cache)
    return [layout.pairs(row) for row in range(len(layout))]


@given(lengths, st.integers(1, 40), st.sampled_from(["best_fit", "one_document"]))
def test_every_pair_is_in_one_row_and_no_short_document_is_cut(lengths, seq_len, packing):
    store = store_of(lengths)
    rows = rows_of(store, seq_len, packing)
    assert all(row.counts.sum() <= seq_len for row in rows)
    pieces = [
        tokens.tolist()
        for row in rows
        for tokens in np.split(row.tokens, np.cumsum(row.counts + 1)[:-1])
    ]
    expected = []
    for first, end in itertools.pairwise(store.starts.tolist()):
        cuts = [*range(first, end - 1, seq_len), end - 1]
        expected += [list(range(a, b + 1)) for a, b in itertools.pairwise(cuts)]
    assert sorted(pieces) == sorted(expected)
    if packing == "one_document":
        assert all(len(row.counts) == 1 for row in rows)


@given(lengths, st.integers(1, 40))
def test_best_fit_opens_no_row_while_one_has_room(lengths, seq_len):
    rows = rows_of(store_of(lengths), seq_len, "best_fit")
    room = [seq_len - int(row.counts.sum()) for row in rows]
    largest = [int(row.counts.max()) for row in rows]
    for earlier, later in itertools.combinations(range(len(rows)), 2):
        assert largest[later] > room[earlier]


def test_best_fit_fills_rows_of_log_normal_documents():
    drawn = np.random.default_rng(0).lognormal(6, 1, 20_000).astype(int) + 2
    rows = row_layout(store_of(drawn), 2048, "best_fit", cache="unused")
    assert (drawn - 1).sum() / (len(rows) * 2048) >= 0.98


def test_rows_of_several_shards_are_those_of_each(cfg, tmp_path, monkeypatch):
    monkeypatch.setattr("axcore.data.store.plan._SMALLEST", 1000)
    store = built(cfg, tmp_path / "store").splits["train"]
    assert len(store.shards) > 3
    rows = rows_of(store, 64, "best_fit")
    found = sorted(tuple(row.tokens.tolist()) for row in rows_of(store, 64, "one_document"))
    pieces = [
        tuple(tokens.tolist())
        for row in rows
        for tokens in np.split(row.tokens, np.cumsum(row.counts + 1)[:-1])
    ]
    assert sorted(pieces) == found
    assert sum(len(row.tokens) - len(row.counts) for row in rows) == (
        store.num_tokens - store.num_documents
    )


def test_the_index_of_a_large_store_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MIN_CACHED_DOCUMENTS", 1)
    store = store_of([5, 9, 30, 2, 17])
    first = rows_of(store, 16, "best_fit", tmp_path)
    (kept,) = tmp_path.glob("*.index")
    assert store.digest in kept.name
    monkeypatch.setattr(module, "count_sizes", None)  # is not made again
    for ours, theirs in zip(rows_of(store, 16, "best_fit", tmp_path), first, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        np.testing.assert_array_equal(ours.counts, theirs.counts)


def test_a_batch_of_whole_documents_ends_in_padding():
    layout = row_layout(store_of([5, 9, 3]), 8, "one_document", cache="unused")
    batch = PackedRows(layout, seq_len=8, pad_id=99).batch([2, 0])
    assert batch["tokens"].tolist() == [[14, 15] + [99] * 6, [0, 1, 2, 3] + [99] * 4]
    assert batch["loss_weights"].sum(axis=1).tolist() == [2, 4]
    assert batch["segment_ids"][1].tolist() == [1] * 4 + [0] * 4


def test_a_position_in_another_packing_is_refused(cfg):
    state = cfg.build().train().get_state()
    with pytest.raises(DataError, match="packing was None, is 'best_fit'"):
        evolve(cfg, packing="best_fit").build().train().set_state(state)
    state = evolve(cfg, packing="best_fit").build().train().get_state()
    with pytest.raises(DataError, match="packing was 'best_fit', is None"):
        cfg.build().train().set_state(state)


@pytest.mark.parametrize("packing", ["best_fit", "one_document"])
def test_packings_of_a_store_and_of_its_source_agree(cfg, tmp_path, packing):
    cfg = evolve(cfg, packing=packing)
    built(cfg, tmp_path / "store")
    stored = evolve(cfg, source=StoredSource.Config(path=str(tmp_path / "store")))
    ours, theirs = stored.build().train(), cfg.build().train()
    for _ in range(40):
        a, b = next(ours), next(theirs)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_pieces_of_a_size_meet_others_under_another_key_and_epoch():
    store = store_of(np.random.default_rng(0).integers(2, 30, 2000))

    def rows(seed, epoch, each):
        shuffle = DocumentShuffle(seed, is_each_epoch=each)
        layout = row_layout(store, 64, "best_fit", cache="unused", shuffle=shuffle)
        numbers = range(epoch * len(layout), (epoch + 1) * len(layout))
        return [tuple(sorted(layout.pairs(row).tokens.tolist())) for row in numbers]

    first = rows("a", 0, True)
    assert sorted(token for row in first for token in row) == list(range(store.num_tokens))
    assert first == rows("a", 0, True) == rows("a", 0, False) == rows("a", 1, False)
    for other in (rows("b", 0, True), rows("a", 1, True)):
        assert len(set(first) & set(other)) < 0.1 * len(first)
        assert list(map(len, first)) == list(map(len, other))
    spread = [np.ptp(row) / store.num_tokens for row in first if len(row) > 50]
    assert np.mean(spread) > 0.4  # a row's documents are from all over the corpus


@given(lengths, st.integers(1, 40))
def test_best_fit_has_as_many_rows_of_each_room_as_one_piece_at_a_time(lengths, seq_len):
    rooms = []
    sizes = [min(seq_len, n - 1 - k) for n in lengths for k in range(0, n - 1, seq_len)]
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else seq_len) - size)
    rows = rows_of(store_of(lengths), seq_len, "best_fit")
    assert sorted(seq_len - int(row.counts.sum()) for row in rows) == sorted(rooms)


def test_several_processes_make_one_index(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MIN_CACHED_DOCUMENTS", 1)
    made = []
    index = module._index
    monkeypatch.setattr(module, "_index", lambda *given: made.append(1) or index(*given))
    store = store_of([5, 9, 30, 2, 17])
    start = threading.Barrier(4)

    def read():
        start.wait()
        return [row.tokens.tolist() for row in rows_of(store, 16, "best_fit", tmp_path)]

    with ThreadPoolExecutor(4) as threads:
        found = [one.result() for one in [threads.submit(read) for _ in range(4)]]
    assert made == [1]
    assert found[0] == found[1] == found[2] == found[3]
