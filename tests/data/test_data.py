"""`Data`: an epoch holds all text once, host count changes nothing, and resume is exact."""

import json
import subprocess
import sys
import threading
from collections import Counter
from hashlib import sha256
from itertools import islice, pairwise

import numpy as np
import pytest

from axcore.config import REQUIRED, evolve, from_json, to_json
from axcore.data import ByteTokenizer, Data, JsonLines, StandardLibrary, TextFiles
from axcore.data.document import is_validation
from axcore.errors import ConfigError, DataError

NUM_FILES = 40


def text_of(i):
    """Texts of 0 to 400 bytes, no two alike."""
    words = np.random.default_rng(i).integers(0, 1000, size=(i * 7) % 80)
    return f"<{i}>" * (i > 0) + " ".join(map(str, words)) + "é" * (i % 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpus")
    for i in range(NUM_FILES):
        (root / f"{i:02}.txt").write_text(text_of(i), encoding="utf-8")
    return root


@pytest.fixture
def cfg(folder):
    return Data.Config(
        source=TextFiles.Config(folder=str(folder)),
        seq_len=32,
        batch_size=6,
        validation_fraction=0.3,
    )


def assert_equal_batches(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
            assert a[name].dtype == b[name].dtype


def rows_of(batches):
    for batch in batches:
        yield from ({name: batch[name][i] for name in batch} for i in range(len(batch["tokens"])))


def pairs_of(rows):
    """Counts the (token, target) pairs that have a loss."""
    counts = Counter()
    for row in rows:
        real = row["loss_weights"] == 1
        counts.update(zip(row["tokens"][real].tolist(), row["targets"][real].tolist(), strict=True))
    return counts


def expected_pairs(held):
    counts = Counter()
    for i in range(NUM_FILES):
        if is_validation(f"{i:02}.txt", 0.3) == held:
            tokens = [256, *text_of(i).encode(), 257]
            counts.update(pairwise(tokens))
    return counts


def test_every_epoch_holds_every_training_token_once_in_an_order_of_its_own(cfg):
    data = cfg.build()
    num_rows = round(data.summary().batches_per_epoch * cfg.batch_size)
    rows = rows_of(data.train())
    epochs = [list(islice(rows, num_rows)) for _ in range(3)]
    for epoch in epochs:
        assert pairs_of(epoch) == expected_pairs(held=False)
    orders = [[row["tokens"].tobytes() for row in epoch] for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_validation_batches_hold_every_validation_token_once_and_no_training_token(cfg):
    assert pairs_of(rows_of(cfg.build().validation())) == expected_pairs(held=True)


def test_validation_is_the_same_every_time_whatever_the_seed(cfg):
    data = cfg.build()
    validation = data.validation()
    first = list(validation)
    assert_equal_batches(first, list(validation))
    assert_equal_batches(first, list(data.validation()))
    assert_equal_batches(first, list(evolve(cfg, seed=5, shuffle=False).build().validation()))
    assert len(validation) == len(first)


def test_validation_batches_are_full_and_their_padding_weighs_nothing(cfg):
    *_, last = cfg.build().validation()
    padding = ~(last["segment_ids"] > 0).any(axis=1)
    assert last["tokens"].shape == (6, 32)
    assert 0 < padding.sum() < 6
    assert last["loss_weights"][padding].sum() == 0


def test_validation_batches_bounds_an_evaluation(cfg):
    every = list(cfg.build().validation())
    some = evolve(cfg, validation_batches=2).build().validation()
    assert len(some) == 2 < len(every)
    assert_equal_batches(list(some), every[:2])
    assert len(evolve(cfg, validation_batches=1000).build().validation()) == len(every)


@pytest.mark.parametrize("process_count", [2, 3])
def test_processes_together_read_what_one_process_reads(cfg, process_count):
    def read(data, share):
        batches = list(islice(data.train(**share), 40))
        return batches, list(data.validation(**share))

    def joined(parts):
        return [
            {name: np.concatenate([part[name] for part in batch]) for name in batch[0]}
            for batch in zip(*parts, strict=True)
        ]

    train, validation = read(cfg.build(), {})
    parts = [
        read(cfg.build(), {"process_index": i, "process_count": process_count})
        for i in range(process_count)
    ]
    assert_equal_batches(joined([part[0] for part in parts]), train)
    assert_equal_batches(joined([part[1] for part in parts]), validation)


@pytest.mark.parametrize("step", [0, 1, 13, 200])
def test_a_restored_iterator_goes_on_exactly(cfg, step):
    iterator = cfg.build().train()
    for _ in range(step):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    follows = list(islice(iterator, 30))

    fresh = cfg.build().train()
    next(fresh)
    fresh.set_state(state)
    assert fresh.get_state() == state
    assert_equal_batches(list(islice(fresh, 30)), follows)

    iterator.set_state(state)
    assert_equal_batches(list(islice(iterator, 30)), follows)


def test_a_state_is_small_and_not_changed_by_reading_on(cfg):
    iterator = cfg.build().train()
    for _ in range(500):
        next(iterator)
    state = iterator.get_state()
    text = json.dumps(state)
    next(iterator)
    assert json.dumps(state) == text
    assert len(text) < 300


def test_a_state_of_one_process_restores_another_and_another_number_of_them(cfg):
    one = cfg.build().train()
    for _ in range(9):
        next(one)
    state = one.get_state()
    two = cfg.build().train(process_index=1, process_count=2)
    two.set_state(state)
    batch = next(one)
    assert_equal_batches([next(two)], [{name: batch[name][3:] for name in batch}])


@pytest.mark.slow
def test_a_fresh_process_goes_on_exactly(cfg):
    iterator = cfg.build().train()
    for _ in range(21):
        next(iterator)
    code = """
import json, sys
from hashlib import sha256
from axcore.config import from_json
from axcore.data import Data
cfg, state = json.load(sys.stdin)
iterator = from_json(cfg).build().train()
iterator.set_state(state)
for _ in range(5):
    batch = next(iterator)
    print(sha256(b"".join(batch[name].tobytes() for name in sorted(batch))).hexdigest())
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([to_json(cfg), iterator.get_state()]),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    expected = [
        sha256(b"".join(batch[name].tobytes() for name in sorted(batch))).hexdigest()
        for batch in islice(iterator, 5)
    ]
    assert result.stdout.split() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 12}, "batch_size was 6, is 12"),
        ({"seq_len": 16}, "seq_len was 32, is 16"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"shuffle": False}, "shuffle was True, is False"),
        ({"validation_fraction": 0.1}, "tokens was '[0-9a-f]+', is '[0-9a-f]+'"),
    ],
)
def test_a_position_in_other_data_is_refused(cfg, change, message):
    state = cfg.build().train().get_state()
    iterator = evolve(cfg, **change).build().train()
    with pytest.raises(DataError, match=f"belongs to other training data: {message}"):
        iterator.set_state(state)


def test_a_position_in_a_corpus_that_changed_since_is_refused(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name * 100)
    source = TextFiles.Config(folder=str(tmp_path))
    cfg = Data.Config(source=source, seq_len=8, batch_size=2, validation_fraction=0.0)
    state = cfg.build().train().get_state()
    (tmp_path / "b.txt").write_text("b" * 99 + "!")
    with pytest.raises(DataError, match="belongs to other training data: tokens was"):
        cfg.build().train().set_state(state)


@pytest.mark.parametrize("damage", [{"grain": {}}, {"grain": {"next_index": -3}}, {"data": None}])
def test_what_is_no_position_is_refused_and_changes_nothing(cfg, damage):
    iterator, untouched = cfg.build().train(), cfg.build().train()
    for _ in range(3):
        next(iterator)
        next(untouched)
    with pytest.raises(DataError, match="This is not a saved position in the training data"):
        iterator.set_state({**iterator.get_state(), **damage})
    assert_equal_batches([next(iterator)], [next(untouched)])


def test_the_seed_decides_the_order_and_nothing_else_does(cfg):
    def start(cfg):
        return list(islice(cfg.build().train(), 5))

    assert_equal_batches(start(cfg), start(cfg))
    other = start(evolve(cfg, seed=1))
    assert any((a["tokens"] != b["tokens"]).any() for a, b in zip(start(cfg), other, strict=True))


def test_two_iterators_of_one_data_do_not_move_each_other(cfg):
    data = cfg.build()
    one, two = data.train(), data.train()
    ahead = list(islice(one, 4))
    assert_equal_batches(list(islice(two, 4)), ahead)


def test_writing_into_a_batch_does_not_reach_the_data(cfg):
    data = cfg.build()
    batch = next(data.train())
    expected = {name: batch[name].copy() for name in batch}
    for array in batch.values():
        array[:] = 0
    assert_equal_batches([next(data.train())], [expected])


def test_the_summary_counts_documents_and_tokens(cfg):
    summary = cfg.build().summary()
    held = [is_validation(f"{i:02}.txt", 0.3) for i in range(NUM_FILES)]
    sizes = [len(text_of(i).encode()) + 2 for i in range(NUM_FILES)]
    assert summary.validation_documents == sum(held)
    assert summary.train_documents == NUM_FILES - sum(held)
    assert summary.validation_tokens == sum(n for n, h in zip(sizes, held, strict=True) if h)
    assert summary.train_tokens == sum(n for n, h in zip(sizes, held, strict=True) if not h)
    assert f"{summary.train_documents} documents, {summary.train_tokens:,} tokens" in str(summary)
    assert "validation" in str(summary)


def test_data_built_for_its_tokenizer_reads_no_text(cfg, tmp_path):
    missing = evolve(cfg, source=TextFiles.Config(folder=str(tmp_path / "gone")))
    data = missing.build()
    assert data.tokenizer.decode(data.tokenizer.encode("text")) == "text"
    with pytest.raises(DataError, match="does not exist"):
        data.train()


def test_json_lines_and_text_files_of_equal_documents_give_equal_tokens(tmp_path):
    texts = [text_of(i) for i in range(1, 9)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
    cfgs = [
        Data.Config(source=source, seq_len=16, batch_size=4, validation_fraction=0.0)
        for source in (
            JsonLines.Config(folder=str(tmp_path)),
            TextFiles.Config(folder=str(tmp_path)),
        )
    ]
    ours, theirs = (list(islice(cfg.build().train(), 30)) for cfg in cfgs)
    assert_equal_batches(ours, theirs)


def test_no_validation_text_is_held_out_of_fraction_zero(cfg):
    data = evolve(cfg, validation_fraction=0.0).build()
    assert list(data.validation()) == []
    assert data.summary().train_documents == NUM_FILES


def test_documents_without_text_are_no_data(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n\n")
    source = JsonLines.Config(folder=str(tmp_path))
    with pytest.raises(DataError, match="There is no text to train on: no document of JSON lines"):
        Data.Config(source=source, seq_len=8, batch_size=1).build().train()


def test_files_that_are_all_empty_are_no_data(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    source = TextFiles.Config(folder=str(tmp_path))
    for fraction in (0.0, 0.05):
        cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=fraction)
        with pytest.raises(DataError, match=r"no document of text files .* has any"):
            cfg.build().train()


def test_a_split_that_holds_everything_out_is_refused(tmp_path):
    (tmp_path / "only.txt").write_text("text")
    source = TextFiles.Config(folder=str(tmp_path))
    cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=0.999)
    with pytest.raises(DataError, match=r"all 1 documents of text files .* are held out"):
        cfg.build().train()


def test_a_split_that_holds_nothing_out_though_asked_to_is_refused(tmp_path):
    (tmp_path / "only.txt").write_text("text")
    source = TextFiles.Config(folder=str(tmp_path))
    cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=0.001)
    with pytest.raises(
        DataError, match=r"No document is held out: validation_fraction is 0\.001"
    ) as e:
        cfg.build().train()
    assert "validation_fraction=0" in e.value.hint


def test_wrong_settings_are_reported_together(cfg):
    with pytest.raises(ConfigError) as e:
        evolve(cfg, seq_len=0, batch_size=-1, validation_fraction=1.0, validation_batches=0)
    assert e.value.what.splitlines() == [
        "seq_len is 0; expected 1 or more",
        "batch_size is -1; expected 1 or more",
        "validation_fraction is 1.0; expected 0 or more and less than 1",
        "validation_batches is 0; expected 1 or more",
    ]


def test_shape_is_required():
    cfg = Data.Config()
    assert cfg.seq_len is REQUIRED
    with pytest.raises(ConfigError, match="lacks 2 required fields:\n  seq_len\n  batch_size"):
        cfg.build()


def test_a_config_survives_json(cfg):
    assert from_json(to_json(cfg)) == cfg
    assert cfg.tokenizer == ByteTokenizer.Config()


def test_the_standard_library_trains_and_starts_no_thread():
    before = set(threading.enumerate())
    cfg = Data.Config(source=StandardLibrary.Config(), seq_len=256, batch_size=4)
    data = cfg.build()
    batch = next(data.train())
    assert batch["loss_weights"].mean() > 0.99
    assert len(data.validation()) > 10
    assert set(threading.enumerate()) <= before
