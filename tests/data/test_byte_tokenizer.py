"""Bytes as tokens: exact round trip, documents framed, a vocabulary that divides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axcore.data import ByteTokenizer
from axcore.errors import ConfigError

tokenizer = ByteTokenizer.Config().build()
law = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@given(st.text())
@law
def test_decoding_the_encoded_text_gives_the_text(text):
    tokens = tokenizer.encode(text)
    assert tokens.tolist() == list(text.encode("utf-8"))
    assert tokens.dtype == np.int32
    assert tokenizer.decode(tokens) == text


@given(st.lists(st.text(), max_size=5))
@law
def test_documents_are_framed_and_otherwise_unchanged(texts):
    for text, document in zip(texts, tokenizer.encode_documents(texts), strict=True):
        assert document.tolist() == [256, *text.encode("utf-8"), 257]
        assert document.dtype == np.uint16
        assert tokenizer.decode(document) == text


def test_a_prompt_begins_like_a_document():
    prompt = tokenizer.encode_prompt("def ")
    (document,) = tokenizer.encode_documents(["def f(): pass"])
    assert prompt.tolist() == document[: len(prompt)].tolist()


def test_special_and_unused_tokens_stand_for_no_text():
    special = [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id]
    assert special == [256, 257, 258]
    assert tokenizer.decode([*special, *range(259, tokenizer.vocab_size), 65]) == "A"


def test_half_a_character_reads_as_a_replacement():
    assert tokenizer.decode("é".encode()[:1] + b"x") == "\ufffdx"


@pytest.mark.parametrize(("multiple", "size"), [(1, 259), (8, 264), (128, 384)])
def test_the_vocabulary_is_rounded_up(multiple, size):
    assert ByteTokenizer.Config(vocab_multiple=multiple).build().vocab_size == size


def test_a_vocabulary_multiple_of_zero_is_refused():
    with pytest.raises(ConfigError, match="vocab_multiple is 0; expected 1 or more"):
        ByteTokenizer.Config(vocab_multiple=0).build()
