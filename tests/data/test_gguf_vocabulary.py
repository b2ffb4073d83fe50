"""Tokenizers as llama.cpp reads them; `make parity-gguf` compares the tokens that it makes."""

import json

import numpy as np
import pytest
import tokenizers
from gguf_tokenizers import (
    BYTE_LEVEL,
    END,
    SPACES,
    byte_level,
    merged_pieces,
    pieces,
    rewritten,
    with_runs_last,
)

from axcore.config import evolve
from axcore.data import ByteTokenizer, HuggingFaceTokenizer, gguf_vocabulary
from axcore.errors import ConfigError

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6


def of(tokenizer, size=None):
    metadata, note = gguf_vocabulary(tokenizer, size or tokenizer.vocab_size)
    return {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}, note


def test_bytes_are_tokens_of_their_own_between_which_nothing_merges():
    found, note = of(ByteTokenizer.Config().build(), 300)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    signs, alone = found["tokens"][:256], tokenizers.Tokenizer(tokenizers.models.BPE())
    assert set(signs) == set(alphabet)
    assert len(found["tokens"]) == len(set(found["tokens"])) == 300
    for text in ("a", "\n", " ", "~"):
        alone.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        ((sign, _),) = alone.pre_tokenizer.pre_tokenize_str(text)
        assert signs[ord(text)] == sign
    assert found["token_type"] == [NORMAL] * 256 + [CONTROL] * 3 + [UNUSED] * 41
    assert not {part for merge in found["merges"] for part in merge.split()} & set(signs)
    ids = {name: found[f"{name}_token_id"] for name in ("bos", "eos", "padding")}
    assert ids == {"bos": 256, "eos": 257, "padding": 258}
    assert (found["model"], found["add_bos_token"], note) == ("gpt2", True, "")


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_each_way_to_cut_text_has_the_name_that_llama_cpp_has_for_it(name, tmp_path):
    make, ignore_merges = BYTE_LEVEL[name]
    tokenizer = byte_level(tmp_path / "tokenizer.json", make(), ignore_merges=ignore_merges)
    found, note = of(tokenizer, 512)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert found["pre"] == name
    assert found["model"] == "gpt2"
    assert [found["tokens"].index(text) for text in content["model"]["vocab"]] == list(
        content["model"]["vocab"].values()
    )
    assert found["merges"] == [" ".join(pair) for pair in content["model"]["merges"]]
    assert found["token_type"][tokenizer.eos_id] == CONTROL
    assert found["tokens"][-1] == "[PAD511]"
    assert not found["add_bos_token"]
    assert ("capitals other than A to Z" in note) == (name == "tekken")


def test_text_that_is_composed_first_is_said(tmp_path):
    nfc = tokenizers.normalizers.NFC()
    make, _ = BYTE_LEVEL["qwen2"]
    found, note = of(byte_level(tmp_path / "tokenizer.json", make(), normalizer=nfc))
    assert found["pre"] == "qwen2"
    assert "composes letters first (NFC)" in note


def test_text_that_is_changed_otherwise_is_refused(tmp_path):
    lower = tokenizers.normalizers.Lowercase()
    make, _ = BYTE_LEVEL["qwen2"]
    tokenizer = byte_level(tmp_path / "tokenizer.json", make(), normalizer=lower)
    with pytest.raises(ConfigError, match=r'its normalizer is {"type": "Lowercase"}'):
        of(tokenizer)


def test_a_way_to_cut_text_that_llama_cpp_lacks_is_refused_by_name(tmp_path):
    cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = byte_level(tmp_path / "tokenizer.json", cut)
    with pytest.raises(
        ConfigError, match=r'its pre_tokenizer is .*"add_prefix_space": true'
    ) as said:
        of(tokenizer)
    assert "axcore knows the ways of gpt-2, llama-bpe" in str(said.value)


def test_words_are_no_bpe(tmp_path):
    words = tokenizers.models.WordLevel({END: 0, "one": 1}, unk_token=END)
    tokenizers.Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    cfg = HuggingFaceTokenizer.Config(path=str(tmp_path / "tokenizer.json"), eos_token=END)
    with pytest.raises(ConfigError, match="it is a WordLevel; axcore writes BPE"):
        of(cfg.build())


def test_tokens_that_end_a_text_and_the_template_come_along(tmp_path):
    made = byte_level(tmp_path / "tokenizer.json", BYTE_LEVEL["gpt-2"][0]())
    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}")
    ends = tuple(made.content["model"]["vocab"])[5:8]
    cfg = HuggingFaceTokenizer.Config(
        path=str(tmp_path / "tokenizer.json"),
        eos_token=END,
        end_tokens=ends[:2],
        chat_template_path=str(tmp_path / "chat.jinja"),
    )
    found, _ = of(cfg.build())
    numbers = [found[f"{name}_token_id"] for name in ("eos", "eot", "eom")]
    assert [found["tokens"][i] for i in numbers] == [END, *ends[:2]]
    assert found["tokenizer.chat_template"] == "{{ messages[0].content }}"
    assert "tokenizer.chat_templates" not in found
    (tmp_path / "tools.jinja").write_text("{{ tools[0].name }}")
    cfg = evolve(cfg, tool_template_path=str(tmp_path / "tools.jinja"))
    found, _ = of(cfg.build())
    assert found["tokenizer.chat_templates"] == ["tool_use"]
    assert found["tokenizer.chat_template.tool_use"] == "{{ tools[0].name }}"
    more = HuggingFaceTokenizer.Config(path=cfg.path, eos_token=END, end_tokens=ends)
    with pytest.raises(ConfigError, match="4 tokens end a text, and a file names 3"):
        of(more.build())


def test_pieces_keep_their_scores_and_types(tmp_path):
    tokenizer = pieces(tmp_path / "tokenizer.model")
    found, _ = of(tokenizer)
    processor = tokenizer._processor
    assert found["model"] == "llama"
    assert found["tokens"] == [processor.id_to_piece(i) for i in range(len(found["tokens"]))]
    np.testing.assert_array_equal(
        found["scores"], [processor.get_score(i) for i in range(len(found["tokens"]))]
    )
    assert [i for i, kind in enumerate(found["token_type"]) if kind == BYTE] == [
        i for i in range(len(found["tokens"])) if processor.is_byte(i)
    ]
    assert found["token_type"][:3] == [UNKNOWN, CONTROL, CONTROL]
    ids = [found[f"{name}_token_id"] for name in ("unknown", "bos", "eos")]
    assert ids == [processor.unk_id(), processor.bos_id(), processor.eos_id()]
    assert found["add_space_prefix"] is True
    larger, _ = of(tokenizer, tokenizer.vocab_size + 5)
    assert len(larger["scores"]) == len(larger["tokens"]) == tokenizer.vocab_size + 5


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"normalization_rule_name": "nmt_nfkc"}, "it normalizes text"),
        ({"remove_extra_whitespaces": True}, "removes spaces that follow each other"),
        ({"model_type": "unigram"}, "it is not BPE"),
    ],
)
def test_pieces_that_llama_cpp_would_cut_otherwise_are_refused(settings, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        of(pieces(tmp_path / "tokenizer.model", **settings))


@pytest.mark.parametrize("spaces", SPACES)
def test_a_file_made_of_pieces_has_their_order(spaces, tmp_path):
    source = pieces(tmp_path / "tokenizer.model")
    made = merged_pieces(tmp_path / "tokenizer.json", source, spaces=spaces)
    found, note = of(made)
    assert found["add_space_prefix"] == (spaces != "replaced")
    assert ("puts a space before every text" in note) == (spaces == "metaspace")
    original, _ = of(source)
    assert (found["tokens"], found["token_type"]) == (original["tokens"], original["token_type"])
    merged = [i for i, kind in enumerate(found["token_type"]) if kind == NORMAL]
    merged = [i for i in merged if len(found["tokens"][i]) > 1]
    scores = np.array(found["scores"])[merged], np.array(original["scores"])[merged]
    np.testing.assert_array_equal(np.argsort(scores[0]), np.argsort(scores[1]))


def test_merges_of_which_some_are_missing_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    made = merged_pieces(path, pieces(tmp_path / "tokenizer.model"))
    merges = made.content["model"]["merges"]
    fewer = rewritten(path, model_merges=[one for one in merges if one != merges[0]])
    left, right = merges[0]
    with pytest.raises(ConfigError, match=f"'{left}' and '{right}' are not merged to"):
        of(fewer)


def test_merges_of_spaces_may_be_mixed_as_in_the_file_of_llama_2(tmp_path):
    merged_pieces(tmp_path / "tokenizer.json", pieces(tmp_path / "tokenizer.model"))
    found, _ = of(with_runs_last(tmp_path / "tokenizer.json"))
    scores = dict(zip(found["tokens"], found["scores"], strict=True))
    assert scores["▁▁"] < scores["▁▁▁"] < scores["▁t"]


def test_mixed_merges_that_scores_would_cut_otherwise_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    merged_pieces(path, pieces(tmp_path / "tokenizer.model"))
    merges = with_runs_last(path, longest=4).content["model"]["merges"]
    runs = [pair for pair in map(tuple, merges) if set("".join(pair)) == {"▁"}]
    others = [pair for pair in map(tuple, merges) if pair not in runs]
    lengths = [(1, 1), (1, 2), (1, 3), (2, 2), (2, 1), (3, 1)]  # scores would join 2 and 1 before
    mixed = [("▁" * left, "▁" * right) for left, right in lengths]
    assert sorted(mixed) == sorted(runs)
    with pytest.raises(ConfigError, match="are in several places"):
        of(rewritten(path, model_merges=[*others, *mixed]))


def test_merges_in_the_order_of_no_scores_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    made = merged_pieces(path, pieces(tmp_path / "tokenizer.model"))
    merges = [tuple(one) for one in made.content["model"]["merges"]]
    several = next(p for p in merges if sum("".join(p) == "".join(q) for q in merges) > 1)
    moved = rewritten(path, model_merges=[several, *(one for one in merges if one != several)])
    with pytest.raises(ConfigError, match="are in several places"):
        of(moved)


def test_a_model_with_less_tokens_than_its_tokenizer_is_refused():
    with pytest.raises(ConfigError, match="the tokenizer has 259 tokens, and the model 258"):
        of(ByteTokenizer.Config().build(), 258)


def test_data_without_a_tokenizer_is_refused():
    with pytest.raises(ConfigError, match=r"there is none, and llama.cpp reads text"):
        gguf_vocabulary(None, 10)
