"""Transforms: pure, the same in a store as in memory, and nothing is left out without a count."""

import contextlib
import io
import json
import re
from collections import Counter
from itertools import islice

import attrs
import numpy as np
import pytest
from chat_tokenizer import write_chat_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from stores import built, contents

from axcore.config import evolve
from axcore.data import (
    ByteTokenizer,
    ChatMessages,
    Data,
    Deduplicate,
    Document,
    Dropped,
    FieldFilter,
    FillInTheMiddle,
    ImagePixels,
    JsonLines,
    LengthFilter,
    PatternFilter,
    SpanCorruption,
    StoredSource,
    TransformTools,
    open_store,
    tokenizer_in,
)
from axcore.data.transforms.transform import apply_all
from axcore.errors import ConfigError, DataError, PluginError
from axcore.modifiers.named import with_changes

BYTES = ByteTokenizer.Config().build()
FIM = FillInTheMiddle.Config(prefix_id=259, suffix_id=260, middle_id=261)
SPANS = SpanCorruption.Config(first_sentinel=259, num_sentinels=5)


def write(folder, records, name="a.jsonl"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def data_of(folder, *transforms, **fields):
    source = JsonLines.Config(folder=str(folder), transforms=transforms, **fields)
    return Data.Config(source=source, seq_len=16, batch_size=2, validation_fraction=0.0)


def texts(cfg):
    """The texts of all documents, as a run in memory would read them."""
    source = cfg.source.build()
    return [one.text for one in source.transformed(cfg.tokenizer.build())]


def one(cfg, document):
    made = apply_all([cfg.build()], document, BYTES)
    if isinstance(made, Dropped):
        return made
    (only,) = made
    return only


TEXTS = ["one", "two words", "three little words", "", "one", "ONE", "naïve"]


@pytest.mark.parametrize(
    ("transform", "left"),
    [
        (LengthFilter.Config(min_length=4), [1, 2, 5 + 1]),
        (LengthFilter.Config(max_length=4), [0, 3, 4, 5]),
        (PatternFilter.Config(pattern="w.rds$"), [1, 2]),
        (PatternFilter.Config(pattern="(?i)one", keeps=False), [1, 2, 3, 6]),
        (FieldFilter.Config(field="score", min_value=4), [4, 5, 6]),
        (FieldFilter.Config(field="score", max_value=1), [0, 1]),
        (FieldFilter.Config(field="lang", equals="en"), [0, 2, 4, 6]),
        (Deduplicate.Config(), [0, 1, 2, 3, 5, 6]),
        (Deduplicate.Config(ignores_case_and_space=True), [0, 1, 2, 3, 6]),
    ],
)
def test_filters_keep_what_they_say_in_memory_and_in_a_store(tmp_path, transform, left):
    records = [
        {"text": text, "score": number, "lang": "de" if number % 2 else "en"}
        for number, text in enumerate(TEXTS)
    ]
    write(tmp_path / "lines", records)
    cfg = data_of(tmp_path / "lines", transform)
    assert texts(cfg) == [TEXTS[number] for number in left]
    store = built(cfg, tmp_path / "store")
    assert store.manifest.records == len(TEXTS)
    assert sum(store.manifest.dropped.values()) == len(TEXTS) - len(left)
    found = [one.text for one in StoredSource.Config(path=str(store.folder)).build().documents()]
    assert found == [TEXTS[number] for number in left]


def test_reasons_are_counted_one_by_one_and_said(tmp_path, capsys):
    write(tmp_path / "lines", [{"text": text} for text in ["a", "bb", "bb", "ccc", "dddd"]])
    cfg = data_of(
        tmp_path / "lines", LengthFilter.Config(min_length=2, max_length=3), Deduplicate.Config()
    )
    assert texts(cfg) == ["bb", "ccc"]
    said = capsys.readouterr().err
    for reason in ("1 shorter than 2", "1 longer than 3", "1 equal to an earlier document"):
        assert reason in said
    assert built(cfg, tmp_path / "store").manifest.dropped == {
        "shorter than 2": 1,
        "longer than 3": 1,
        "equal to an earlier document": 1,
    }


@pytest.mark.usefixtures("small_parts")
@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(["", "a", "b" * 150, "c" * 400, "d"]), min_size=2, max_size=40))
def test_duplicates_of_all_parts_leave_the_first(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("duplicates")
    write(folder / "lines", [{"text": text} for text in ["seed", *found]])
    write(folder / "lines", [{"text": text} for text in reversed(found)], name="b.jsonl")
    cfg = evolve(data_of(folder / "lines", Deduplicate.Config()), validation_fraction=0.3)
    expected = list(dict.fromkeys(["seed", *found]))
    assert texts(cfg) == expected
    with contextlib.suppress(DataError):  # chance holds out all of them, or none
        built(cfg, folder / "store")
    if not (folder / "store" / "manifest.json").exists():
        return
    store = open_store(folder / "store")
    kept = [one.text for one in StoredSource.Config(path=str(store.folder)).build().documents()]
    assert Counter(kept) == Counter(expected)
    assert all(is_whole for _, is_whole in store.verify())


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("at", ["check_corpus", "_remove_replaced"])
def test_a_build_killed_while_it_leaves_duplicates_out_ends_as_one_that_was_not(
    tmp_path, monkeypatch, at
):
    from axcore.data.store import build as build_module

    write(tmp_path / "lines", [{"text": f"{n % 20} " * 60} for n in range(60)])
    cfg = data_of(tmp_path / "lines", Deduplicate.Config())
    with monkeypatch.context() as patch:
        patch.setattr(build_module, at, lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            built(cfg, tmp_path / "store")
    built(cfg, tmp_path / "store")
    built(cfg, tmp_path / "whole")
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")
    assert not list((tmp_path / "store").rglob("*.keys"))


def test_other_transforms_are_another_source(cfg, tmp_path):
    built(cfg, tmp_path / "store")
    source = evolve(cfg.source, transforms=(LengthFilter.Config(min_length=1),))
    with pytest.raises(DataError, match="source_digest was"):
        built(evolve(cfg, source=source), tmp_path / "store")


@pytest.mark.parametrize("transform", [FIM, SPANS])
def test_what_is_random_depends_on_the_seed_and_the_name_alone(transform):
    document = Document("a:1", "some words of a text " * 4)
    made = [one(transform, document).tokens for _ in range(2)]
    np.testing.assert_array_equal(*made)
    others = [one(evolve(transform, seed=seed), document).tokens for seed in range(1, 9)]
    assert any(not np.array_equal(made[0], other) for other in others)


@given(st.text(max_size=60), st.integers(0, 99))
def test_the_middle_moves_and_nothing_is_lost(text, number):
    made = one(evolve(FIM, rate=1.0), Document(f"a:{number}", text))
    assert made.tokens[0] == BYTES.bos_id
    assert made.tokens[-1] == BYTES.eos_id
    inner = made.tokens[1:-1].tolist()
    assert inner[0] == 259
    suffix_at, middle_at = inner.index(260), inner.index(261)
    suffix, end = inner[suffix_at + 1 : middle_at], inner[middle_at + 1 :]
    whole = inner[1:suffix_at] + end + suffix
    assert bytes(whole).decode() == text


def test_rates_of_filling_are_kept():
    made = [one(evolve(FIM, rate=0.3), Document(f"a:{n}", "x" * 40)) for n in range(1000)]
    changed = [document for document in made if document.tokens is not None]
    assert 250 < len(changed) < 350
    suffix_first = sum(int(document.tokens[2] == 260) for document in changed)
    assert 0.35 < suffix_first / len(changed) < 0.65


@given(st.binary(min_size=2, max_size=300), st.integers(0, 99))
def test_corrupted_text_and_spans_are_the_document(raw, number):
    text = "".join(chr(32 + byte % 90) for byte in raw)
    made = one(SPANS, Document(f"a:{number}", text))
    if made.tokens is None:
        assert round(len(text) * 0.15) < 1
        return
    tokens, counts = made.tokens[1:-1], made.loss_weights[1:-1]
    assert made.loss_weights[-1]
    assert not made.loss_weights[0]
    spans, span = {}, None
    for token in tokens[counts].tolist():
        if token >= 259:
            span = spans.setdefault(token, [])
        else:
            span.append(token)
    assert sum(map(len, spans.values())) == round(len(text) * 0.15)
    assert all(spans.values())
    rebuilt = []
    for token in tokens[~counts].tolist():
        rebuilt += spans[token] if token >= 259 else [token]
    assert bytes(rebuilt).decode() == text


def test_only_spans_count_in_batches_and_a_store_gives_the_same(tmp_path):
    write(tmp_path / "lines", [{"text": f"the text of number {n} " * 3} for n in range(20)])
    cfg = evolve(data_of(tmp_path / "lines", SPANS), seq_len=64, validation_fraction=0.2)
    stored = built(cfg, tmp_path / "store")
    assert stored.manifest.dtype == "<i2"
    from_store = evolve(cfg, source=StoredSource.Config(path=str(stored.folder)))
    batches = list(islice(cfg.build().train(), 8))
    for ours, theirs in zip(batches, islice(from_store.build().train(), 8), strict=True):
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name])
    for batch in batches:
        assert batch["tokens"].min() >= 0
        assert batch["targets"].min() >= 0
    counted = sum(batch["loss_weights"].sum() for batch in batches)
    real = sum((batch["segment_ids"] > 0).sum() for batch in batches)
    assert 0.1 < counted / real < 0.3


TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
]


@pytest.fixture
def chats(tmp_path):
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model"))
    write(tmp_path / "lines", [{"messages": TALK}, {"messages": TALK[:2]}])
    return evolve(data_of(tmp_path / "lines", ChatMessages.Config()), tokenizer=tokenizer)


def test_only_answers_count(chats):
    (first, second) = chats.source.build().transformed(chats.tokenizer.build())
    decode = chats.tokenizer.build().decode
    answer = "Hello!"
    assert decode(second.tokens[second.loss_weights > 0]) == answer
    assert decode(first.tokens[first.loss_weights > 0]) == "Hello!4"
    assert first.tokens[first.loss_weights > 0].tolist().count(257) == 2, (
        "the ends of answers count"
    )
    assert decode(second.tokens) == "user:Hiassistant:Hello!"


def test_every_token_counts_where_no_role_is_named(chats):
    source = evolve(chats.source, transforms=(ChatMessages.Config(role=None),))
    first, _ = source.build().transformed(chats.tokenizer.build())
    assert first.loss_weights.all()


def test_weights_of_a_batch_are_those_of_the_answers_in_a_store_too(chats, tmp_path):
    store = built(chats, tmp_path / "store")
    cfg = evolve(chats, shuffle=False, seq_len=128, batch_size=1)
    for source in (chats.source, StoredSource.Config(path=str(store.folder))):
        batch = next(evolve(cfg, source=source).build().train())
        counted = batch["targets"][batch["loss_weights"] == 1]
        assert chats.tokenizer.build().decode(counted) == "Hello!4Hello!"


def test_a_conversation_in_which_nothing_counts_is_left_out_and_counted(chats, tmp_path):
    silent = [TALK[0], {**TALK[1], "weight": 0}]
    write(tmp_path / "lines", [{"messages": TALK}, {"messages": silent}])
    store = built(chats, tmp_path / "store")
    assert store.manifest.dropped == {"no message counts: each has the weight 0, or no text": 1}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": "Hi"}, "Field 'messages' contains 'Hi', not a list of messages"),
        ({"messages": []}, "not a list of messages"),
        ({"messages": [{"content": "Hi"}]}, "Message 1 is {'content': 'Hi'}, which has no role"),
        ({"messages": [*TALK, "Hi"]}, "Message 5 is 'Hi', which has no role"),
        ({"text": "Hi"}, "Field 'messages' contains None, not a list of messages"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "Message 1 has the role 'wizard'"),
        ({"messages": [{"role": "system", "content": ""}, *TALK]}, "no role system"),
        ({"messages": TALK[:1]}, "The conversation has no message of 'assistant'"),
        (
            {"messages": [{**TALK[0], "weight": 0.5}, *TALK]},
            "Message 1 of 'user' has the weight 0.5",
        ),
        ({"messages": [{"role": "user"}, *TALK]}, "Message 1 has neither content nor tool_calls"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, *TALK]},
            "has as conte",
        ),
        ({"messages": TALK, "tools": "{"}, "Field 'tools' is not JSON: '{'"),
        ({"conversations": [{"from": "function_call", "value": "{"}]}, "a function call, is not J"),
    ],
)
def test_a_bad_conversation_is_quarantined_with_its_place(chats, tmp_path, record, message):
    write(tmp_path / "lines", [{"messages": TALK}, record])
    with pytest.raises(DataError, match=re.escape(message)):
        list(chats.source.build().transformed(chats.tokenizer.build()))
    source = evolve(chats.source, on_bad="skip")
    store = built(evolve(chats, source=source), tmp_path / "store")
    (bad,) = map(json.loads, (store.folder / "quarantine.jsonl").read_text().splitlines())
    begin = len(json.dumps({"messages": TALK})) + 1
    assert (bad["file"], bad["offset"]) == ("a.jsonl", begin)
    assert message in bad["reason"]


def test_a_template_that_changes_earlier_turns_makes_several_documents(chats, tmp_path, capfd):
    changes = "{% for m in messages %}{{ loop.length }}{{ m.role }}{{ m.content }}{% endfor %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(changes)
    write(tmp_path / "lines", [{"messages": TALK}])
    made = list(chats.source.build().transformed(chats.tokenizer.build()))
    assert [len(made), {document.name for document in made}] == [2, {"a.jsonl:1"}]
    assert "are 2 documents, as transforms made several of each" in capfd.readouterr().err
    store = built(chats, tmp_path / "store")
    found = [one.tokens for one in StoredSource.Config(path=str(store.folder)).build().documents()]
    assert len(found) == 2
    assert store.manifest.records == 1


def test_of_equal_records_the_first_one_keeps_all_its_documents(tmp_path):
    class Words(LengthFilter):
        def apply(self, document, tools):
            return [attrs.evolve(document, text=word) for word in document.text.split()]

    write(tmp_path / "lines", [{"text": text} for text in ("a a", "a a", "a b")])
    source = JsonLines.Config(
        folder=str(tmp_path / "lines"), transforms=(Deduplicate.Config(), Words.Config())
    )
    made = list(source.build().transformed(BYTES))
    assert [one.name[-1] + one.text for one in made] == ["1a", "1a", "3a", "3b"]


def png(color, size=(8, 4)):
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "png")
    return out.getvalue()


def test_pixels_come_before_the_text():
    cfg = ImagePixels.Config(field="png", height=2, width=3)
    document = Document("a", "hi", fields={"png": png((1, 2, 3))})
    made = one(cfg, document)
    assert made.tokens.tolist() == [256, *[1, 2, 3] * 6, *b"hi", 257]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"no image", "it is none of BMP, GIF"),
        (png((0, 0, 0))[:40], "cannot be read as an image"),
        ("text", "it is a str, not bytes"),
        (png((0, 0, 0), (20, 20)), "it has 20 x 20 pixels"),
    ],
)
def test_a_bad_image_is_named(value, message):
    cfg = ImagePixels.Config(field="png", max_pixels=399)
    with pytest.raises(DataError, match=message):
        one(cfg, Document("a", "", fields={"png": value}))


def test_a_number_that_is_none_is_a_bad_record():
    cfg = FieldFilter.Config(field="score", min_value=1)
    for value in ("2", None, True, float("nan")):
        with pytest.raises(DataError, match="not a number"):
            one(cfg, Document("a", "", fields={"score": value}))


def test_a_pattern_that_is_none_is_a_config_error():
    with pytest.raises(ConfigError, match="is not a regular expression: missing"):
        one(PatternFilter.Config(pattern="("), Document("a", ""))


def test_names_on_the_command_line_add_transforms_in_order(cfg):
    changed = with_changes(cfg, ["length_filter(min_length=3)", "deduplicate"])
    assert changed.source.transforms == (LengthFilter.Config(min_length=3), Deduplicate.Config())


def test_a_transform_that_renames_is_refused():
    class Renames(LengthFilter):
        def apply(self, document, tools):
            return Document("other", document.text)

    with pytest.raises(PluginError, match="a Document of the same name, or several, or a Dropped"):
        apply_all([Renames(LengthFilter.Config())], Document("a", ""), BYTES)


def test_two_equal_transforms_draw_different_numbers():
    document = Document("a", "x")
    tools = [TransformTools(BYTES, place) for place in range(2)]
    first, second = (one.rng(0, document).random() for one in tools)
    assert first != second
    assert isinstance(Dropped("x").reason, str)
