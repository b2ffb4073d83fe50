"""Token stores: what is read from one is what was tokenized, whatever happened to the build."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import built, contents

from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer, JsonLines, StoredSource, TextFiles, open_store
from axcore.data import cache as cache_module
from axcore.data import data as data_module
from axcore.data.sources.file_source import Tally
from axcore.data.store import build as build_module
from axcore.data.store import plan as plan_module
from axcore.data.store.plan import make_plan
from axcore.errors import DataError


def from_store(cfg, folder):
    return evolve(cfg, source=StoredSource.Config(path=str(folder)))


def assert_equal_batches(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def start(cfg):
    data = cfg.build()
    return [*islice(data.train(), 60), *data.validation()]


@pytest.mark.usefixtures("small_parts")
def test_a_store_gives_the_batches_of_its_source(cfg, tmp_path):
    store = built(cfg, tmp_path / "store")
    assert len(store.splits["train"].shards) > 8
    assert_equal_batches(start(from_store(cfg, tmp_path / "store")), start(cfg))


@pytest.mark.usefixtures("small_parts")
def test_a_store_of_text_files_gives_the_batches_of_its_source(cfg, lines, tmp_path):
    cfg = evolve(cfg, source=TextFiles.Config(folder=str(lines), glob="*"))
    cfg = evolve(cfg, validation_fraction=0.0)
    built(cfg, tmp_path / "store")
    assert_equal_batches(start(from_store(cfg, tmp_path / "store")), start(cfg))


@given(
    st.lists(st.text("ab\r \u00e9", max_size=30), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 60),
)
def test_parts_of_a_file_hold_its_documents_in_order(tmp_path_factory, texts, ends, target):
    folder = tmp_path_factory.mktemp("parts")
    lines = [json.dumps({"text": text}) if text != "a" else "" for text in texts]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n" * ends)
    source = JsonLines.Config(folder=str(folder)).build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "_SMALLEST", target)
        parts = make_plan(source, ByteTokenizer.Config(), 0.0).parts
    tally = Tally(source)
    read = [
        one
        for part in parts
        for span in part
        for one in tally.documents(source.records(span), span.file)
    ]
    assert read == list(source.documents())


@pytest.mark.usefixtures("small_parts")
def test_a_build_that_was_stopped_makes_only_what_is_missing(cfg, tmp_path):
    folder, reports = tmp_path / "store", []
    built(cfg, folder)
    whole = contents(folder)
    (folder / "manifest.json").unlink()
    shards = folder / "shards"
    missing = ["000003", "000007"]
    for name in missing:
        (shards / f"{name}.json").unlink()
        (shards / f"{name}.train.tokens").write_bytes(b"torn")
    (shards / "000009.train.tokens.123.tmp").write_bytes(b"a draft of one that was killed")
    built(cfg, folder, report=reports.append)
    assert contents(folder) == whole
    assert len(reports) == 1 + len(missing)


def test_a_store_that_is_there_is_not_built_again(cfg, tmp_path):
    built(cfg, tmp_path / "store")
    reports = []
    built(cfg, tmp_path / "store", report=reports.append)
    assert reports == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation_fraction": 0.3}, r"validation_fraction was 0\.2, is 0\.3"),
        ({"tokenizer": ByteTokenizer.Config(vocab_multiple=16)}, "tokenizer_digest was"),
        ({"source.field": "body"}, "source_digest was"),
    ],
)
def test_a_folder_of_another_build_is_refused(cfg, tmp_path, change, message):
    built(cfg, tmp_path / "store")
    with pytest.raises(DataError, match=f"a store of something else: {message}"):
        built(update_config(cfg, change), tmp_path / "store")


def test_a_folder_of_something_else_is_left_as_it_is(cfg, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="contains something else than a token store"):
        built(cfg, tmp_path / "mine")
    assert contents(tmp_path / "mine") == {"notes.txt": b"mine"}


def test_a_build_that_was_stopped_while_it_planned_begins_again(cfg, tmp_path, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module, "make_plan", stopped)
    with pytest.raises(KeyboardInterrupt):
        built(cfg, tmp_path / "store")
    monkeypatch.undo()
    built(cfg, tmp_path / "store")
    built(cfg, tmp_path / "whole")
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


def test_a_build_waits_for_another_that_plans(cfg, tmp_path, monkeypatch):
    """Where the other one does not wait, it fails as soon as it begins."""
    waits, asked = build_module.fcntl.flock, threading.Event()
    others = []

    def lock(*args):
        if threading.current_thread() is not threading.main_thread():
            asked.set()
        waits(*args)

    def planned(*args):
        if not others:
            others.append(pool.submit(built, cfg, tmp_path / "store"))
            others[0].add_done_callback(lambda _: asked.set())
            asked.wait()
        return make_plan(*args)

    monkeypatch.setattr(build_module.fcntl, "flock", lock)
    monkeypatch.setattr(build_module, "make_plan", planned)
    with ThreadPoolExecutor(1) as pool:
        first = built(cfg, tmp_path / "store")
        assert others[0].result().manifest == first.manifest


def test_files_that_changed_are_another_source(cfg, lines, tmp_path):
    built(cfg, tmp_path / "store")
    os.utime(lines / "a.jsonl", ns=(1, 1))
    with pytest.raises(DataError, match="source_digest was"):
        built(cfg, tmp_path / "store")


def test_a_bad_line_ends_a_build_that_allows_none(cfg, lines, tmp_path):
    with (lines / "b.jsonl").open("a") as file:
        file.write("\n{")
    with pytest.raises(DataError, match=r"b\.jsonl, line 41 is not JSON"):
        built(cfg, tmp_path / "store")
    with pytest.raises(DataError, match="There is no token store"):
        open_store(tmp_path / "store")


@pytest.mark.usefixtures("small_parts")
def test_bad_records_are_quarantined_with_file_offset_and_reason(cfg, lines, tmp_path):
    before = (lines / "a.jsonl").read_bytes()
    (lines / "a.jsonl").write_bytes(before + b'\n{"body": 1}\n\xff\n')
    source = evolve(cfg.source, on_bad="skip")
    store = built(evolve(cfg, source=source), tmp_path / "store")
    assert (store.manifest.records, store.manifest.bad_records) == (82, 2)
    quarantine = (store.folder / "quarantine.jsonl").read_text()
    named = [json.loads(one) for one in quarantine.splitlines()]
    begin = len(before) + 1
    assert [(one["file"], one["offset"]) for one in named] == [
        ("a.jsonl", begin),
        ("a.jsonl", begin + len(b'{"body": 1}\n')),
    ]
    assert "has no field 'text'" in named[0]["reason"]
    assert "is not UTF-8" in named[1]["reason"]


def test_more_bad_records_than_may_be_end_a_build(cfg, lines, tmp_path):
    with (lines / "b.jsonl").open("a") as file:
        file.write("\n{" * 3)
    source = evolve(cfg.source, on_bad="skip", max_bad_fraction=0.03)
    with pytest.raises(DataError, match=r"3 of 83 lines are bad, and max_bad_fraction is 0\.03"):
        built(evolve(cfg, source=source), tmp_path / "store")


@pytest.mark.usefixtures("small_parts")
def test_verify_finds_any_flipped_bit(cfg, tmp_path):
    store = built(cfg, tmp_path / "store")
    assert all(is_whole for _, is_whole in store.verify())
    for suffix in ("tokens", "pairs"):
        damaged = store.folder / "shards" / f"000002.train.{suffix}"
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 4
        damaged.write_bytes(data)
        found = [shard.name for shard, is_whole in store.verify() if not is_whole]
        assert found == ["000002.train"]
        data[len(data) // 2] ^= 4
        damaged.write_bytes(data)


def test_a_shard_that_was_cut_short_is_named(cfg, tmp_path):
    store = built(cfg, tmp_path / "store")
    shard = store.folder / "shards" / "000000.train.tokens"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"000000\.train\.tokens has \d+ bytes; \d+ were written"):
        next(from_store(cfg, store.folder).build().train())


def test_a_store_is_read_with_its_own_tokenizer_and_split_only(cfg, tmp_path):
    store = built(cfg, tmp_path / "store")
    other = evolve(from_store(cfg, store.folder), tokenizer=ByteTokenizer.Config(vocab_multiple=32))
    with pytest.raises(DataError, match="The store's tokens are another tokenizer's"):
        other.build().train()
    other = evolve(from_store(cfg, store.folder), validation_fraction=0.5)
    with pytest.raises(
        DataError, match=r"built with validation_fraction=0\.2, and the data's is 0\.5"
    ):
        other.build().train()


def test_a_store_that_was_moved_is_the_same_store(cfg, tmp_path):
    built(cfg, tmp_path / "store")
    state = from_store(cfg, tmp_path / "store").build().train().get_state()
    shutil.move(tmp_path / "store", tmp_path / "moved")
    from_store(cfg, tmp_path / "moved").build().train().set_state(state)


def test_documents_of_a_store_are_those_of_its_source(cfg, lines, tmp_path):
    cfg = evolve(cfg, validation_fraction=0.0)
    built(cfg, tmp_path / "store")
    texts = [one.text for one in from_store(cfg, tmp_path / "store").source.build().documents()]
    assert texts == [one.text for one in cfg.source.build().documents()]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Where large sources are kept; here all of them are large."""
    monkeypatch.setenv(cache_module.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(data_module, "LARGEST_IN_MEMORY", 0)
    return tmp_path / "cache"


def test_a_large_source_is_built_in_the_cache_and_found_there(cfg, lines, cache, capsys):
    first = start(cfg)
    assert f"are kept in {cache}" in capsys.readouterr().err
    (store,) = cache.iterdir()
    before = contents(store)
    shutil.copy2(lines / "a.jsonl", lines / "a.copy")
    (lines / "a.jsonl").write_bytes(b"x" * (lines / "a.jsonl").stat().st_size)
    shutil.copystat(lines / "a.copy", lines / "a.jsonl")  # as if nothing had changed
    assert_equal_batches(start(cfg), first)
    assert contents(store) == before


def test_a_large_source_that_changed_is_built_again(cfg, lines, cache):
    start(cfg)
    with (lines / "a.jsonl").open("a") as file:
        file.write('\n{"text": "one more"}')
    start(cfg)
    assert len(list(cache.iterdir())) == 2


def test_a_cached_source_gives_the_batches_of_one_in_memory(cfg, cache, monkeypatch):
    cached = start(cfg)
    monkeypatch.setattr(data_module, "LARGEST_IN_MEMORY", 1 << 30)
    assert_equal_batches(start(cfg), cached)


def test_the_cache_is_below_the_users_own(monkeypatch):
    monkeypatch.delenv(cache_module.CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_module.cache_folder() == Path("/somewhere/axcore/data")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_any_number_of_processes_reads_the_same_batches_across_epochs(cfg, tmp_path, packing):
    built(cfg, tmp_path / "store")
    cfg = evolve(from_store(cfg, tmp_path / "store"), batch_size=8, packing=packing)
    data = cfg.build()
    an_epoch = int(data.summary().batches_per_epoch)
    assert 4 < an_epoch < 100
    steps = 2 * an_epoch + 5  # across the ends of two epochs
    whole = list(islice(data.train(), steps))
    for process_count in (2, 4, 8):
        parts = [
            data.train(process_index=i, process_count=process_count) for i in range(process_count)
        ]
        for resumed_at in (0, an_epoch - 1, 2 * an_epoch):
            state = {**parts[0].get_state(), "grain": {"next_index": resumed_at}}
            for part in parts:
                part.set_state(state)
            for step in range(resumed_at, min(resumed_at + 5, steps)):
                read = [next(part) for part in parts]
                for name in whole[step]:
                    joined = np.concatenate([one[name] for one in read])
                    np.testing.assert_array_equal(joined, whole[step][name])
