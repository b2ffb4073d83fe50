"""A mixture: each source's share of the rows, in its own order, wherever a run resumes."""

import json
from collections import Counter
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.config import evolve, from_json, to_json, update_config
from axcore.data import Data, JsonLines, Mixture, NewWeights
from axcore.data.sources.schedule import Schedule, integer_weights, period
from axcore.errors import ConfigError, DataError

SIZES = {"a": 40, "b": 15, "c": 300}


@pytest.fixture
def cfg(tmp_path):
    """Three sources whose documents repeat a letter: rows say where they come from."""
    for name, count in SIZES.items():
        (tmp_path / name).mkdir()
        texts = [name * (20 + i % 7) for i in range(count)]
        content = "\n".join(json.dumps({"text": text}) for text in texts)
        (tmp_path / name / "all.jsonl").write_text(content)
    source = Mixture.Config(
        sources={name: JsonLines.Config(folder=str(tmp_path / name)) for name in SIZES},
        weights={"a": 0.5, "b": 0.3, "c": 0.2},
    )
    return Data.Config(source=source, seq_len=16, batch_size=6, validation_fraction=0.1)


def letters(batches):
    """Returns the source of each row."""
    return [
        chr(next(token for token in row if token < 256)) for one in batches for row in one["tokens"]
    ]


def start(cfg, steps=40, **shard):
    return list(islice(cfg.build().train(**shard), steps))


def with_source(cfg, **changes):
    return evolve(cfg, source=evolve(cfg.source, **changes))


def test_every_first_rows_hold_the_shares_to_less_than_a_row(cfg):
    seen = Counter()
    for count, letter in enumerate(letters(start(cfg, 100)), start=1):
        seen[letter] += 1
        for name, weight in (("a", 0.5), ("b", 0.3), ("c", 0.2)):
            assert abs(seen[name] - weight * count) < 1


@pytest.mark.slow
def test_each_source_is_read_in_epochs_of_its_own(cfg):
    sizes = {"a": 5, "b": 7, "c": 90}
    order = cfg.source.build().order(
        [range(size) for size in sizes.values()], [1.0] * 3, batch_size=4, seed=1, shuffle=True
    )
    rows = np.array([order[place] for place in range(700)])
    for source, size in enumerate(sizes.values()):
        own = rows[rows % len(sizes) == source] // len(sizes)
        epochs = own[: len(own) // size * size].reshape(-1, size)
        assert len(epochs) >= 1
        assert (np.sort(epochs) == np.arange(size)).all()


@pytest.mark.parametrize("process_count", [2, 3, 6])
def test_processes_together_read_what_one_reads(cfg, process_count):
    parts = [start(cfg, process_index=i, process_count=process_count) for i in range(process_count)]
    for whole, *some in zip(start(cfg), *parts, strict=True):
        for name in whole:
            np.testing.assert_array_equal(np.concatenate([one[name] for one in some]), whole[name])


def test_a_restored_mixture_goes_on_exactly(cfg):
    batches = cfg.build().train()
    list(islice(batches, 33))
    state = json.loads(json.dumps(batches.get_state()))
    fresh = cfg.build().train()
    fresh.set_state(state)
    for ours, theirs in zip(islice(fresh, 20), islice(batches, 20), strict=True):
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    "change",
    [
        {"weights": {"a": 1.0, "b": 0.3, "c": 0.2}},
        {"by": "documents"},
        {"max_epochs": {"a": 0.5}},
        {"changes": (NewWeights(from_step=10, weights={"a": 1}),)},
    ],
)
def test_a_position_in_another_mixture_is_refused(cfg, change):
    batches = cfg.build().train()
    list(islice(batches, 33))
    with pytest.raises(DataError, match="belongs to other training data: mixture was") as e:
        with_source(cfg, **change).build().train().set_state(batches.get_state())
    assert "from step 33 of the data on: data.source.changes" in e.value.hint


def test_weights_change_at_the_step_that_says_so(cfg):
    changed = with_source(cfg, changes=(NewWeights(from_step=10, weights={"b": 1, "c": 3}),))
    assert letters(start(changed, 10)) == letters(start(cfg, 10))
    after = Counter(letters(start(changed, 50)[10:]))
    assert after == {"b": 60, "c": 180}


def test_what_a_source_gives_does_not_depend_on_the_others(cfg):
    def rows_of(cfg, name):
        tokens = [row for one in start(cfg, 30) for row in one["tokens"]]
        return [row.tobytes() for row in tokens if chr(row[row < 256][0]) == name]

    other = with_source(cfg, weights={"a": 0.1, "b": 0.3, "c": 0.6})
    ours, theirs = rows_of(cfg, "b"), rows_of(other, "b")
    assert ours == theirs


def test_a_source_with_limited_epochs_leaves_its_share_to_the_others(cfg):
    limited = with_source(cfg, max_epochs={"b": 2})
    own = evolve(cfg, source=cfg.source.sources["b"], batch_size=1)
    rows = round(own.build().summary().batches_per_epoch)
    seen = Counter(letters(start(limited, 100)))
    assert seen["b"] == 2 * rows
    assert abs(seen["a"] / (seen["a"] + seen["c"]) - 5 / 7) < 0.05


def test_a_mixture_that_has_ended_says_after_how_many_rows(cfg):
    limited = with_source(cfg, max_epochs=dict.fromkeys(SIZES, 1))
    rows = round(limited.build().summary().batches_per_epoch * 6)
    batches = limited.build().train()
    with pytest.raises(DataError, match=rf"has no rows: after {rows} rows every source") as e:
        list(batches)
    assert "max_epochs" in e.value.hint


def test_shares_of_documents_follow_their_lengths(cfg, tmp_path):
    long = "\n".join(json.dumps({"text": "a" * 1000}) for _ in range(30))
    (tmp_path / "a" / "all.jsonl").write_text(long)
    cfg = with_source(cfg, weights={"a": 1, "c": 1}, by="documents")
    seen = Counter(letters(start(cfg, 200)))
    data = [evolve(cfg, source=cfg.source.sources[name]).build().summary() for name in "ac"]
    a, c = (one.train_tokens / one.train_documents for one in data)
    assert seen["a"] / seen.total() == pytest.approx(a / (a + c), abs=0.002)


@pytest.mark.parametrize("packing", ["best_fit", "one_document"])
@pytest.mark.parametrize("by", ["tokens", "documents"])
def test_shares_are_kept_where_rows_are_not_full(cfg, packing, by):
    """Documents of `a` are a sixth as long as those of `c`, so that rows are not equally full."""
    folder = Path(cfg.source.sources["a"].folder) / "all.jsonl"
    folder.write_text("\n".join(json.dumps({"text": "a" * 3}) for _ in range(60)))
    cfg = evolve(with_source(cfg, weights={"a": 1, "c": 2}, by=by), packing=packing, seq_len=32)
    seen = Counter()
    for batch in start(cfg, 100):
        for row, segments, weights in zip(
            *(batch[name] for name in ("tokens", "segment_ids", "loss_weights")), strict=True
        ):
            count = segments.max() if by == "documents" else weights.sum()
            seen[chr(row[row < 256][0])] += int(count)
    assert seen["a"] / seen.total() == pytest.approx(1 / 3, abs=0.04)


def test_validation_is_that_of_all_sources(cfg):
    data = cfg.build()
    names = set(
        letters([{"tokens": [r for r in b["tokens"] if r[0] < 257]} for b in data.validation()])
    )
    assert names == set(SIZES)
    summaries = [evolve(cfg, source=one).build().summary() for one in cfg.source.sources.values()]
    assert data.summary().validation_tokens == sum(one.validation_tokens for one in summaries)
    assert data.summary().train_documents == sum(one.train_documents for one in summaries)
    assert "mixture of 0.5 a, 0.3 b, 0.2 c" in str(data.summary())


def test_a_mixture_survives_json_and_overrides(cfg):
    assert from_json(to_json(cfg)) == cfg
    assert (
        update_config(cfg, {'source.sources["a"].field': "body"}).source.sources["a"].field
        == "body"
    )


def test_a_mixture_in_a_mixture_is_refused_as_its_weights_would_not_count(cfg):
    sources = {"inner": cfg.source, "c": cfg.source.sources["c"]}
    with pytest.raises(ConfigError, match="source 'inner' is a mixture") as e:
        with_source(cfg, sources=sources, weights={"inner": 1, "c": 1}).build()
    assert e.value.where == "data.source.sources.inner"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": {"d": 1}}, "there is no source 'd'"),
        ({"weights": {"a": 0}}, "expected numbers from 0 on, not all of them 0"),
        ({"weights": {"a": -1, "b": 2}}, "expected numbers from 0 on"),
        (
            {"weights": {"a": 0.1234567, "b": 0.5}},
            "repeats after 6234567 rows, and may after 100000",
        ),
        ({"max_epochs": {"e": 1}}, "there is no source 'e'"),
        ({"changes": (NewWeights(from_step=0, weights={"a": 1}),)}, "come at steps 0"),
        (
            {
                "changes": (
                    NewWeights(from_step=10, weights={"a": 1}, over_steps=1000),
                    NewWeights(from_step=1009, weights={"b": 1}),
                )
            },
            "at step 10 takes 1000 steps, and the next one comes at step 1009",
        ),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(cfg, change, message):
    with pytest.raises(ConfigError, match=message):
        with_source(cfg, **change).build()


def rows_by_source(batches):
    """Returns the rows of each source, in order."""
    found = {name: [] for name in "abcd"}
    for batch in batches:
        for row in batch["tokens"]:
            found[chr(next(token for token in row if token < 256))].append(row.tobytes())
    return found


@pytest.fixture
def with_d(cfg, tmp_path):
    """The same sources and one more, which has no weight yet."""
    (tmp_path / "d").mkdir()
    content = "\n".join(json.dumps({"text": "d" * (20 + i % 7)}) for i in range(90))
    (tmp_path / "d" / "all.jsonl").write_text(content)
    more = {"d": JsonLines.Config(folder=str(tmp_path / "d"))}
    return with_source(cfg, sources={**cfg.source.sources, **more})


@pytest.mark.parametrize(
    "weights",
    [{"a": 1, "b": 1, "c": 1}, {"a": 0.5, "b": 0.3, "c": 0.1, "d": 0.1}, {"b": 1, "c": 1, "d": 2}],
)
def test_a_declared_change_in_the_middle_of_a_run_continues_every_other_source(
    cfg, with_d, weights
):
    """Of each source come the rows that an unchanged run would have read next."""
    batches = cfg.build().train()
    before = list(islice(batches, 33))
    changed = with_source(with_d, changes=(NewWeights(from_step=33, weights=weights),))
    resumed = changed.build().train()
    resumed.set_state(json.loads(json.dumps(batches.get_state())))
    after = list(islice(resumed, 40))
    whole = list(islice(changed.build().train(), 73))
    for ours, theirs in zip(before + after, whole, strict=True):
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name])
    found, endless = rows_by_source(whole), rows_by_source(islice(cfg.build().train(), 500))
    for name in "abc":
        assert found[name] == endless[name][: len(found[name])]
    counts = {name: len(rows) for name, rows in rows_by_source(after).items()}
    total = sum(weights.values())
    for name in "abcd":
        assert abs(counts[name] - 240 * weights.get(name, 0) / total) < 1


def test_a_change_before_the_position_is_refused_and_names_what_was_read(cfg, with_d):
    batches = cfg.build().train()
    list(islice(batches, 33))
    changed = with_source(with_d, changes=(NewWeights(from_step=32, weights={"d": 1}),))
    with pytest.raises(DataError, match=r"tokens\.d was None, is '[0-9a-f]+'"):
        changed.build().train().set_state(batches.get_state())


def test_a_source_that_was_read_and_now_holds_other_text_is_refused_by_name(cfg):
    batches = cfg.build().train()
    list(islice(batches, 5))
    path = Path(cfg.source.sources["b"].folder) / "all.jsonl"
    path.write_text(path.read_text() + '\n{"text": "bbbbbb"}')
    with pytest.raises(DataError, match=r"training data: tokens\.b was '[0-9a-f]+', is '") as e:
        cfg.build().train().set_state(batches.get_state())
    assert "tokens.a" not in str(e.value)


def test_a_cap_on_epochs_may_be_raised_before_it_is_reached(cfg):
    capped, raised = (with_source(cfg, max_epochs={"c": epochs}) for epochs in (2, 3))
    batches = capped.build().train()
    list(islice(batches, 33))
    resumed = raised.build().train()
    resumed.set_state(batches.get_state())
    next(resumed)
    rows = round(evolve(cfg, source=cfg.source.sources["c"]).build().summary().batches_per_epoch)
    list(islice(batches, 12 * rows))  # past the two epochs
    with pytest.raises(DataError, match="mixture was"):
        raised.build().train().set_state(batches.get_state())


@pytest.mark.slow
def test_weights_walk_to_the_new_ones_in_stairs_that_are_exact(cfg):
    sources = {name: cfg.source.sources[name] for name in "ab"}
    source = evolve(
        cfg.source,
        sources=sources,
        weights={"a": 1.0},
        changes=(NewWeights(from_step=10, weights={"a": 1, "b": 3}, over_steps=1000),),
    ).build()
    order = source.order([range(50), range(50)], [1.0] * 2, batch_size=100, seed=0, shuffle=True)
    is_b = np.array([order[place] % 2 for place in range(130_000)])
    assert not is_b[:1000].any()
    way = is_b[1000:101_000].reshape(50, 2000).mean(axis=1)
    assert (np.diff(way) > 0).all()
    np.testing.assert_allclose(way, 0.75 * (np.arange(50) + 0.5) / 50, atol=1.1e-3)
    assert abs(is_b[1000:101_000].sum() - 0.375 * 100_000) < 50
    assert abs(is_b[101_000:].sum() - 0.75 * 29_000) < 1


def test_a_way_that_is_too_short_for_a_stair_is_refused(cfg):
    change = NewWeights(from_step=10, weights={"a": 1}, over_steps=50)
    with pytest.raises(ConfigError, match="which are 300 rows; a stair has 1000") as e:
        next(with_source(cfg, changes=(change,)).build().train())
    assert e.value.hint == "set it to 167 or more, or to 0 for a change at once"


weights = st.lists(st.integers(0, 30), min_size=1, max_size=7).filter(any).map(tuple)


@given(weights)
def test_any_number_of_first_rows_is_less_than_one_row_from_the_weights(weights):
    sources = period(weights).sources
    total = sum(weights)
    counts = np.cumsum(np.eye(len(weights), dtype=int)[sources], axis=0)
    ideal = np.arange(1, total + 1)[:, None] * np.array(weights)
    assert (abs(counts * total - ideal) < total).all()
    assert counts[-1].tolist() == list(weights)


@given(weights, st.integers(0, 10**12))
def test_rows_of_a_source_come_in_order_wherever_one_looks(weights, begin):
    schedule = Schedule([(0, weights)], [None] * len(weights))
    rows = [schedule.row(begin + i) for i in range(200)]
    assert [row[0] for row in rows] == [
        int(period(weights).sources[(begin + i) % sum(weights)]) for i in range(200)
    ]
    for source in range(len(weights)):
        numbers = [number for k, number in rows if k == source]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        seen = Fraction(begin * weights[source], sum(weights))
        assert not numbers or abs(numbers[0] - seen) <= 1


def test_weights_of_two_sources_hold_to_one_row_over_any_window():
    sources = np.tile(period((7, 3)).sources, 3)
    for length in range(1, 21):
        counts = [(sources[i : i + length] == 1).sum() for i in range(9)]
        assert all(abs(count - 0.3 * length) <= 1 for count in counts)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.tuples(*[st.integers(0, 9)] * 3)), max_size=4),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.lists(st.none() | st.integers(0, 60), min_size=3, max_size=3),
)
def test_changes_and_limits_lose_no_row_and_repeat_none(changes, first, limits):
    places = np.cumsum([length for length, _ in changes]).tolist()
    found = [(0, first), *((p, w) for p, (_, w) in zip(places, changes, strict=True) if any(w))]
    schedule = Schedule(found, limits)
    seen, place = [0, 0, 0], 0
    while place < min(schedule.end, 400):
        source, number = schedule.row(place)
        assert number == seen[source]
        seen[source] += 1
        allowed = [w for begin, w in found if begin <= place][-1]
        assert allowed[source]
        place += 1
    assert all(limit is None or count <= limit for count, limit in zip(seen, limits, strict=True))
    if schedule.end < 400:
        last = [w for begin, w in found if begin <= schedule.end][-1]
        assert all(seen[k] == limits[k] for k in range(3) if last[k])
        with pytest.raises(IndexError):
            schedule.row(int(schedule.end))


def test_after_a_limit_the_others_share_what_is_left():
    schedule = Schedule([(0, (2, 1, 1))], [10, None, None])
    counts = Counter(schedule.row(place)[0] for place in range(10_020))
    assert counts[0] == 10
    assert abs(counts[1] - counts[2]) <= 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [([0.7, 0.2, 0.1], (7, 2, 1)), ([3, 1], (3, 1)), ([0.5], (1,)), ([1e-3, 0.999], (1, 999))],
)
def test_weights_are_what_their_decimals_say(given, expected):
    assert integer_weights(given) == expected
