"""Streams: rows in the stream's order, the same wherever a run was stopped and whoever reads."""

import json
import warnings
from itertools import islice

import attrs
import numpy as np
import pytest

from axcore.config import REQUIRED, config, evolve
from axcore.data import (
    ByteTokenizer,
    Deduplicate,
    Document,
    Dropped,
    FileStream,
    JsonLines,
    LengthFilter,
    PrefetchedBatches,
    Stream,
    StreamData,
    streams,
)
from axcore.data.document import is_validation
from axcore.errors import ConfigError, DataError


class Counting(Stream):
    """The numbers from 0 on, spelled out, some of them much longer than a row."""

    @config
    class Config(Stream.Config):
        last: int | None = REQUIRED

    def documents(self, place, tokenizer):
        number = place or 0
        while number != self.config.last:
            repeats = 1 if number % 7 else 30
            yield Document(str(number), f"{number} " * repeats), number + 1
            number += 1

    def describe(self):
        return "the numbers"


def counting(last=None, **fields):
    return StreamData.Config(stream=Counting.Config(last=last), seq_len=16, batch_size=4, **fields)


@pytest.fixture
def files(lines):
    stream = FileStream.Config(source=JsonLines.Config(folder=str(lines)))
    return StreamData.Config(stream=stream, seq_len=64, batch_size=4)


def taken(cfg, count, **shard):
    return list(islice(cfg.build().train(**shard), count))


def assert_equal(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_rows_hold_the_stream_and_lose_nothing():
    cfg = counting()
    batches = taken(cfg, 20)
    for batch in batches:
        assert batch["loss_weights"].all()
    tokens = np.concatenate([batch["targets"].reshape(-1) for batch in batches])
    tokenizer = ByteTokenizer.Config().build()
    expected = [
        tokenizer.encode_documents([document.text])[0][1:]
        for document, _ in islice(cfg.stream.build().documents(None, tokenizer), 400)
    ]
    np.testing.assert_array_equal(tokens, np.concatenate(expected)[: len(tokens)])


@pytest.mark.parametrize("make", ["counting", "files"])
def test_a_run_resumes_exactly_wherever_it_was_stopped(make, files):
    cfg = counting() if make == "counting" else files
    whole = taken(cfg, 40)
    for stop in (0, 1, 5, 17, 33):
        first = cfg.build().train()
        list(islice(first, stop))
        state = json.loads(json.dumps(first.get_state()))
        again = cfg.build().train()
        again.set_state(state)
        assert_equal(list(islice(again, 40 - stop)), whole[stop:])
        assert again.get_state()["grain"]["next_index"] == 40


def test_a_position_stays_small():
    batches = counting().build().train()
    list(islice(batches, 300))
    assert len(json.dumps(batches.get_state()["grain"])) < 100


@pytest.mark.parametrize("count", [2, 4])
def test_any_number_of_processes_share_the_same_batches(files, count):
    whole = taken(files, 10)
    parts = [taken(files, 10, process_index=index, process_count=count) for index in range(count)]
    joined = [
        {name: np.concatenate([one[name] for one in batch]) for name in batch[0]}
        for batch in zip(*parts, strict=True)
    ]
    assert_equal(joined, whole)


def test_batches_prepared_ahead_keep_the_place_of_those_taken():
    cfg = counting()
    ahead = PrefetchedBatches(cfg.build().train(), ahead=3)
    list(islice(ahead, 5))
    state = ahead.get_state()
    ahead.close()
    again = cfg.build().train()
    again.set_state(state)
    assert_equal(list(islice(again, 5)), taken(cfg, 10)[5:])


def test_a_position_of_another_stream_is_refused():
    state = counting().build().train().get_state()
    with pytest.raises(DataError, match="belongs to other training data: seq_len was 16, is 32"):
        evolve(counting(), seq_len=32).build().train().set_state(state)


def test_a_stream_that_ends_says_at_which_step():
    batches = counting(last=30).build().train()
    with pytest.raises(DataError, match=r"The stream ended before step \d+: the numbers"):
        list(batches)
    before = batches.get_state()
    with pytest.raises(DataError, match="The stream ended"):
        next(batches)
    assert batches.get_state() == before


def test_an_epoch_of_files_reads_each_record_once_in_an_order_of_its_own(files):
    stream = evolve(files.stream, max_epochs=8).build()
    tokenizer = ByteTokenizer.Config().build()
    names = [document.name for document, _ in stream.documents(None, tokenizer)]
    epochs = [names[begin : begin + 80] for begin in range(0, len(names), 80)]
    assert len(epochs) == 8
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 2  # of two files


def test_transforms_and_bad_records_do_not_move_places(lines, capsys):
    with (lines / "a.jsonl").open("a") as file:
        file.write('\n{\n{"text": "last of a"}')
    source = JsonLines.Config(
        folder=str(lines), on_bad="skip", transforms=(LengthFilter.Config(min_length=30),)
    )
    cfg = StreamData.Config(stream=FileStream.Config(source=source), seq_len=32, batch_size=2)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        whole = taken(cfg, 200)
        first = cfg.build().train()
        list(islice(first, 90))
        again = cfg.build().train()
        again.set_state(first.get_state())
        assert_equal(list(islice(again, 110)), whole[90:])
    assert any("1 of 42 lines of a.jsonl left out" in str(one.message) for one in warned)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"data: left out of {source.build().describe()}: "), said


class Words(LengthFilter):
    """A document for each word."""

    def apply(self, document, tools):
        words = [attrs.evolve(document, text=word) for word in document.text.split()]
        return words or Dropped("without a word")


def test_a_stream_resumes_within_a_record_of_several_documents(lines):
    source = JsonLines.Config(folder=str(lines), transforms=(Words.Config(),))
    stream = FileStream.Config(source=source, max_epochs=2).build()
    whole = list(stream.documents(None, ByteTokenizer.Config().build()))
    assert len(whole) > len({tuple(place[:3]) for _, place in whole}), "records have several"
    for number in (1, 2, 3, len(whole) // 2, len(whole) - 1):
        place = json.loads(json.dumps(whole[number - 1][1]))
        after = list(stream.documents(place, ByteTokenizer.Config().build()))
        assert [one.text for one, _ in after] == [one.text for one, _ in whole[number:]]


def test_a_place_in_files_that_changed_is_refused(files, lines):
    first = files.build().train()
    next(first)
    state = first.get_state()
    (lines / "0.jsonl").write_text('{"text": "one more file"}')
    again = files.build().train()
    again.set_state(state)
    with pytest.raises(DataError, match="are not those of the saved position: names or sizes"):
        next(again)
    (lines / "0.jsonl").unlink()
    assert_equal([next(again)], taken(files, 2)[1:])


def test_a_stream_whose_filters_leave_nothing_ends_in_an_error(files):
    nothing = evolve(files.stream.source, transforms=(LengthFilter.Config(min_length=10**6),))
    cfg = evolve(files, stream=evolve(files.stream, source=nothing))
    with pytest.raises(DataError, match="have no document, or transforms leave none"):
        next(cfg.build().train())


def test_validation_of_nothing_is_an_error():
    cfg = counting(validation_fraction=0.001, validation_scan=3)
    with pytest.raises(DataError, match="None of the first 3 documents is held out"):
        cfg.build().validation()


def test_duplicates_are_refused(files):
    source = evolve(files.stream.source, transforms=(Deduplicate.Config(),))
    with pytest.raises(ConfigError, match="a stream cannot find duplicates"):
        evolve(files.stream, source=source).build()


def test_what_is_held_out_is_never_trained_on():
    cfg = counting(validation_fraction=0.2, validation_scan=100)
    data = cfg.build()
    held = [number for number in range(100) if is_validation(str(number), 0.2)]
    stream = cfg.stream.build().documents(None, data.tokenizer)
    texts = [document.text for document, _ in islice(stream, 100)]
    num_pairs = sum(len(texts[number]) + 1 for number in held)  # of bos, the text and eos
    assert sum(batch["loss_weights"].sum() for batch in data.validation()) == num_pairs
    read = np.concatenate([batch["targets"].reshape(-1) for batch in taken(cfg, 60)])
    *words, _ = data.tokenizer.decode(read).split()
    assert int(words[-1]) > 90
    assert not {int(word) for word in words} & set(held)


def test_shapes_need_no_file_and_the_summary_says_what_it_is(files):
    spec = files.for_shapes().build().batch_spec()
    assert spec == files.build().batch_spec()
    (batch,) = taken(files, 1)
    for name, array in batch.items():
        assert spec.arrays[name].shape == array.shape
    assert "stream of JSON lines" in str(files.build().summary())


def test_a_stream_without_end_that_gives_no_row_is_an_error(monkeypatch):
    monkeypatch.setattr(streams, "_MAX_UNUSED", 200)
    monkeypatch.setattr(streams, "is_validation", lambda name, fraction: True)
    with pytest.raises(DataError, match=r"200 documents on end gave no row: the numbers"):
        taken(counting(), 1)
