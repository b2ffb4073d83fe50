"""Tokenizers of GGUF files make the tokens of those that they were written from."""

import json

import numpy as np
import pytest
from gguf_tokenizers import BYTE_LEVEL, END, byte_level, merged_pieces, pieces, with_runs_last
from tokenizers import normalizers

from axcore.data import ByteTokenizer, gguf_tokenizer_files, gguf_vocabulary, tokenizer_in
from axcore.errors import DataError

SIGNS = [*"abcdefgh  \n\t.,'0123456789-_", " the", "model", "words", "'LL", "'ll", "é", "日本"]
SIGNS += ["\U0001f600", "\u200b", "\x00", "\r\n", "▁", "ß", "१२३", "  \n\n  ", "<s>", "</s>", END]
NUM_TEXTS = 200


def texts():
    random = np.random.default_rng(3)
    for _ in range(NUM_TEXTS):
        yield "".join(random.choice(SIGNS, random.integers(0, 30)))
    yield from ("It's 2024,\nDON'T stop.", "a" * 1000, "   ", "", "1234567 words and we'll")


def read_again(tokenizer, folder):
    """Returns a tokenizer as a GGUF file has it, with some tokens that are not used."""
    metadata, _ = gguf_vocabulary(tokenizer, tokenizer.vocab_size + 5)
    for name, data in gguf_tokenizer_files(metadata, "model.gguf").items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(data)
    return tokenizer_in(folder).build()


def check(again, tokenizer, given=None):
    for text in given or texts():
        tokens = tokenizer.encode_prompt(text).tolist()
        assert again.encode_prompt(text).tolist() == tokens, repr(text)
    assert again.end_ids == tokenizer.end_ids
    assert (again.bos_id, again.pad_id) == (tokenizer.bos_id, tokenizer.pad_id)


def test_bytes(tmp_path):
    tokenizer = ByteTokenizer.Config().build()
    again = read_again(tokenizer, tmp_path)
    check(again, tokenizer)
    assert all(again.decode(tokenizer.encode(text)) == text for text in texts())


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level(name, tmp_path):
    make, ignore_merges = BYTE_LEVEL[name]
    tokenizer = byte_level(tmp_path / "tokenizer.json", make(), ignore_merges=ignore_merges)
    again = read_again(tokenizer, tmp_path / "again")
    check(again, tokenizer)
    assert all(again.decode(tokenizer.encode(text)) == text for text in texts())


def test_letters_are_composed_as_qwens_tokenizers_do(tmp_path):
    make, _ = BYTE_LEVEL["qwen2"]
    tokenizer = byte_level(tmp_path / "tokenizer.json", make(), normalizer=normalizers.NFC())
    check(read_again(tokenizer, tmp_path / "again"), tokenizer, ["e\u0301", *texts()])


def test_pieces(tmp_path):
    tokenizer = pieces(tmp_path / "tokenizer.model")
    again = read_again(tokenizer, tmp_path / "again")
    check(again, tokenizer)
    assert all(again.decode(tokenizer.encode(text)) == text for text in ("It's", " 2024  a\n"))


@pytest.mark.parametrize("spaces", ["prepended", "replaced"])
def test_pieces_of_a_file_of_merges(spaces, tmp_path):
    source = pieces(tmp_path / "tokenizer.model")
    tokenizer = merged_pieces(tmp_path / "tokenizer.json", source, spaces=spaces)
    check(read_again(tokenizer, tmp_path / "again"), tokenizer)


def test_pieces_of_spaces_that_are_merged_last(tmp_path):
    merged_pieces(tmp_path / "tokenizer.json", pieces(tmp_path / "tokenizer.model"))
    tokenizer = with_runs_last(tmp_path / "tokenizer.json")
    spaced = [" " * n + "text" + " " * n for n in range(20)]
    check(read_again(tokenizer, tmp_path / "again"), tokenizer, [*texts(), *spaced])


def metadata(tmp_path):
    make, _ = BYTE_LEVEL["gpt-2"]
    tokenizer = byte_level(tmp_path / "tokenizer.json", make())
    return gguf_vocabulary(tokenizer, tokenizer.vocab_size)[0]


def test_templates_are_those_of_the_file(tmp_path):
    found = {
        **metadata(tmp_path),
        "tokenizer.chat_template": "{{ messages[0].content }}",
        "tokenizer.chat_template.tool_use": "tools",
    }
    files = gguf_tokenizer_files(found, "model.gguf")
    assert files["chat_template.jinja"] == b"{{ messages[0].content }}"
    assert files["additional_chat_templates/tool_use.jinja"] == b"tools"


def test_every_token_that_ends_an_answer_is_named(tmp_path):
    found = {**metadata(tmp_path), "tokenizer.ggml.eot_token_id": 7}
    settings = json.loads(gguf_tokenizer_files(found, "model.gguf")["generation_config.json"])
    assert settings["eos_token_id"] == [found["tokenizer.ggml.eos_token_id"], 7]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, "is 'bert', which is not read; read are gpt2, llama"),
        ({"pre": "chatglm-bpe"}, "in the way 'chatglm-bpe', which is not read; read are gpt-2"),
        ({"eos_token_id": 999_999}, "of which eos is needed"),
        ({"token_type": [1]}, "1 types of them"),
        ({"model": "llama"}, "tokens and 0 scores"),
        ({"tokens": [1, 2]}, r"tokens=\[1, 2\], which is of another type"),
        ({"eos_token_id": "2"}, "eos_token_id='2', which is of another type"),
    ],
)
def test_tokenizers_that_are_not_read_are_refused_by_name(changes, words, tmp_path):
    own = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(DataError, match=words) as error:
        gguf_tokenizer_files({**metadata(tmp_path), **own}, "model.gguf")
    assert "hint: " in str(error.value)
