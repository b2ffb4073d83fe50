"""Tokenizers in other files than a `tokenizer.json` make the tokens that they are meant to."""

import base64
import json
from itertools import pairwise

import numpy as np
import pytest
from gguf_tokenizers import BYTE_LEVEL, END, TEKKEN, byte_level
from tokenizers import Regex, pre_tokenizers

from axcore.data import has_other_tokenizer, other_tokenizer_files, tokenizer_in
from axcore.data.tokenizers.gguf_vocabulary import byte_signs
from axcore.errors import DataError

SIGNS = [
    *"abcdefgh  \n\t.,'0123456789-_",
    " the",
    "model",
    "words",
    "'LL",
    "é",
    "日本",
    "\U0001f600",
]
CLASSES = {"gpt-2": "GPT2Tokenizer", "qwen2": "Qwen2TokenizerFast"}


def texts():
    random = np.random.default_rng(3)
    for _ in range(100):
        yield "".join(random.choice(SIGNS, random.integers(0, 30)))
    yield from ("It's 2024,\nDON'T stop.", "a" * 100, "   ", "", "1234567 words and we'll")


def read_again(folder, target):
    target.mkdir()
    for name, data in other_tokenizer_files(folder).items():
        (target / name).write_bytes(data)
    return tokenizer_in(target).build()


def merged_bytes(folder, name):
    """Writes the files of GPT-2 of a small tokenizer, and returns that."""
    make, _ = BYTE_LEVEL[name]
    tokenizer = byte_level(folder / "tokenizer.json", make())
    model = tokenizer.content["model"]
    (folder / "vocab.json").write_text(json.dumps({**model["vocab"], END: tokenizer.eos_id}))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    settings = {"tokenizer_class": CLASSES.get(name, "OtherTokenizer"), "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").unlink()
    return tokenizer


@pytest.mark.parametrize("name", CLASSES)
def test_merges_in_a_file_of_their_own(name, tmp_path):
    tokenizer = merged_bytes(tmp_path, name)
    assert has_other_tokenizer(tmp_path)
    again = read_again(tmp_path, tmp_path / "again")
    for text in texts():
        assert again.encode(text).tolist() == tokenizer.encode(text).tolist(), repr(text)
    assert again.end_ids == tokenizer.end_ids
    assert END not in again.decode([*again.encode("a"), again.eos_id])


def test_the_type_of_the_model_says_how_words_are_cut_where_no_class_does(tmp_path):
    tokenizer = merged_bytes(tmp_path, "gpt-2")
    (tmp_path / "tokenizer_config.json").unlink()
    config = {"model_type": "gpt2", "eos_token_id": tokenizer.eos_id}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = read_again(tmp_path, tmp_path / "again")
    assert again.end_ids == tokenizer.end_ids
    assert again.encode("It's").tolist() == tokenizer.encode("It's").tolist()


def test_words_that_are_cut_in_an_unknown_way_are_refused(tmp_path):
    merged_bytes(tmp_path, "smollm")
    with pytest.raises(DataError, match=r"of a OtherTokenizer, .*; known are GPT2Tokenizer"):
        other_tokenizer_files(tmp_path)


def test_merges_of_another_vocabulary_are_refused(tmp_path):
    merged_bytes(tmp_path, "gpt-2")
    with (tmp_path / "merges.txt").open("a") as file:
        file.write("no such")
    with pytest.raises(DataError, match="has 'no such', which is not a merge of two tokens"):
        other_tokenizer_files(tmp_path)


def tekken(folder, **changes):
    """Writes a `tekken.json` with the tokens of a small tokenizer, and returns these in order."""
    make, _ = BYTE_LEVEL["tekken"]
    content = byte_level(folder / "tokenizer.json", make(), ignore_merges=True).content
    (folder / "tokenizer.json").unlink()
    byte_of = {sign: byte for byte, sign in enumerate(byte_signs())}
    texts_of = [left + right for left, right in content["model"]["merges"]]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(byte_of[sign] for sign in text) for text in texts_of]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config = {"pattern": TEKKEN, "default_num_special_tokens": 20, "version": "v3"}
    config["default_vocab_size"] = 20 + len(vocab)
    # Files have more tokens than are used.
    unused = {"rank": len(vocab), "token_bytes": base64.b64encode(b" the model").decode()}
    found = {"config": config, "vocab": [*vocab, unused], **changes}
    (folder / "tekken.json").write_text(json.dumps(found))
    return tokens


def joined(word, ranks):
    """Parts of a word by tiktoken's algorithm: neighbors with the lowest rank are joined first."""
    parts = [bytes([byte]) for byte in word]
    while word not in ranks:
        pairs = [(ranks.get(a + b, 1e9), i) for i, (a, b) in enumerate(pairwise(parts))]
        best, i = min(pairs, default=(1e9, 0))
        if best == 1e9:
            return parts
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [word]


def encoded(text, tokens):
    """The tokens of a text, which the pattern cuts into words first."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    words = pre_tokenizers.Split(Regex(TEKKEN), "isolated").pre_tokenize_str(text)
    return [20 + ranks[part] for word, _ in words for part in joined(word.encode(), ranks)]


def test_a_tekken_makes_the_tokens_of_its_ranks(tmp_path):
    tokens = tekken(tmp_path)
    again = read_again(tmp_path, tmp_path / "again")
    for text in texts():
        assert again.encode(text).tolist() == encoded(text, tokens), repr(text)
        assert again.decode(again.encode(text)) == text
    assert (again.bos_id, again.eos_id) == (1, 2)
    assert [again.token_name(i) for i in (3, 9, 10)] == ["[INST]", "[TOOL_CALLS]", "<SPECIAL_10>"]


def test_a_tekken_has_the_special_tokens_that_it_lists(tmp_path):
    names = ["<unk>", "<s>", "</s>", "[THINK]"]
    tekken(tmp_path, special_tokens=[{"rank": i, "token_str": n} for i, n in enumerate(names)])
    again = read_again(tmp_path, tmp_path / "again")
    assert [again.token_name(i) for i in range(5)] == [*names, "<SPECIAL_4>"]


def test_a_damaged_tekken_is_an_error(tmp_path):
    tekken(tmp_path, config={"version": "v3"})
    with pytest.raises(DataError, match=r"tekken\.json is damaged: KeyError"):
        other_tokenizer_files(tmp_path)
