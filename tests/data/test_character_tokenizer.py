"""Characters by a `vocab.json`: texts come back, and what the vocabulary lacks is named."""

import json

import numpy as np
import pytest

from axcore.data import CharacterTokenizer, characters_in
from axcore.errors import DataError

LETTERS = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "E": 5, "T": 6, "'": 7}


def write(folder, vocabulary, **settings):
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_texts_come_back_and_words_have_a_token_between_them(tmp_path):
    tokenizer = characters_in(write(tmp_path, LETTERS)).build()
    tokens = tokenizer.encode("TE'T E")
    assert tokens.tolist() == [6, 5, 7, 6, 4, 5]
    assert tokens.dtype == np.int32
    assert tokenizer.decode([1, *tokens, 3, 0, 2, 99]) == "TE'T E"
    assert (tokenizer.pad_id, tokenizer.separator_id, tokenizer.vocab_size) == (0, 4, 8)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.added_token("<pad>")) == (1, 2, 0)
    assert (tokenizer.token_bytes(4), tokenizer.token_bytes(0)) == (b" ", None)


def test_special_tokens_may_have_other_names_and_be_behind_the_vocabulary(tmp_path):
    vocabulary = {"e": 0, "|": 1, "[UNK]": 2, "[PAD]": 3}
    folder = write(tmp_path, vocabulary, pad_token="[PAD]", eos_token="</s>", bos_token=None)
    tokenizer = characters_in(folder).build()
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id) == (3, 3, None)
    assert tokenizer.vocab_size == 4


def test_small_letters_become_capitals_where_the_folder_says_so(tmp_path):
    tokenizer = characters_in(write(tmp_path, LETTERS, do_lower_case=True)).build()
    assert tokenizer.encode("tet").tolist() == [6, 5, 6]
    assert tokenizer.decode([6, 5, 6]) == "tet"


def test_a_character_that_the_vocabulary_lacks_is_named(tmp_path):
    tokenizer = characters_in(write(tmp_path, LETTERS)).build()
    with pytest.raises(ValueError, match="has no 'é'"):
        tokenizer.encode("TEé")
    with pytest.raises(ValueError, match=r"has no 't' \(it has the other case: encodes_as\)"):
        tokenizer.encode("Et")


@pytest.mark.parametrize(
    ("vocabulary", "what"),
    [
        ({"eng": LETTERS, "deu": LETTERS}, "a vocabulary for each of 2 languages"),
        ({**LETTERS, "E": 6}, "a number of its own"),
        ({**LETTERS, "sh": 8}, "1 tokens of several characters, as 'sh'"),
        ({"|": 0, "e": 1}, "the vocabulary has no '<pad>'"),
        ({"<pad>": 0, "e": 1}, r"the vocabulary has no '\|'"),
        ({}, "a number of its own"),
    ],
)
def test_another_vocabulary_is_refused(tmp_path, vocabulary, what):
    write(tmp_path, vocabulary)
    with pytest.raises(DataError, match=what):
        CharacterTokenizer.Config(path=str(tmp_path / "vocab.json")).build()


def test_another_space_is_refused(tmp_path):
    folder = write(tmp_path, LETTERS, replace_word_delimiter_char="_")
    with pytest.raises(DataError, match="words are separated by '_'"):
        characters_in(folder)
