"""Tokenizers: bytes come back exactly; files give the tokens of the libraries they are for."""

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import train_pieces
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from axcore.data import ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer
from axcore.errors import ConfigError, DataError

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


TEXT = "def f(x):\n    return x + 1  # naïve 😀\n" * 20


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    """A byte-level BPE that would truncate, pad and frame whatever it encodes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(pad_id=2, pad_token="<pad>", length=16)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def build(path, **settings):
    return HuggingFaceTokenizer.Config(path=str(path), **settings).build()


def test_no_token_is_lost_to_truncation_or_added_by_padding(tokenizer_file):
    tokenizer = build(tokenizer_file, eos_token="</s>")
    reference = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    reference.no_truncation()
    reference.no_padding()
    for text in (TEXT, "x", ""):
        tokens = tokenizer.encode(text)
        assert tokens.dtype == np.int32
        assert tokens.tolist() == reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokens) == text


def test_documents_are_framed_by_the_named_tokens(tokenizer_file):
    tokenizer = build(tokenizer_file, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)
    documents = tokenizer.encode_documents([TEXT, "x"])
    assert documents[0].tolist() == [0, *tokenizer.encode(TEXT), 1]
    assert documents[1].tolist() == [0, *tokenizer.encode("x"), 1]
    assert tokenizer.decode(documents[0]) == TEXT


def test_without_bos_and_pad_a_document_only_ends(tokenizer_file):
    tokenizer = build(tokenizer_file, eos_token="</s>")
    assert (tokenizer.bos_id, tokenizer.pad_id) == (None, 1)
    assert tokenizer.encode_documents(["x"])[0].tolist() == [*tokenizer.encode("x"), 1]
    assert tokenizer.encode_prompt("x").tolist() == tokenizer.encode("x").tolist()


def test_special_tokens_written_in_a_text_are_text(tokenizer_file):
    tokenizer = build(tokenizer_file, eos_token="</s>")
    tokens = tokenizer.encode("a</s>b<s>")
    assert not set(tokens.tolist()) & {0, 1, 2}
    assert tokenizer.decode(tokens) == "a</s>b<s>"


def test_the_vocabulary_covers_every_number(tokenizer_file):
    raw = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    assert build(tokenizer_file, eos_token="</s>").vocab_size == raw.get_vocab_size()
    rounded = build(tokenizer_file, eos_token="</s>", vocab_multiple=64)
    assert rounded.vocab_size == 320


def test_a_vocabulary_with_gaps_counts_to_its_largest_number(tmp_path):
    tokenizers.Tokenizer(models.WordLevel({"a": 0, "</s>": 500}, unk_token="a")).save(
        str(tmp_path / "t.json")
    )
    assert build(tmp_path / "t.json", eos_token="</s>").vocab_size == 501


def test_a_missing_file_is_an_error_that_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"The tokenizer file 'no\.json' does not exist; looked"
    ) as e:
        build("no.json", eos_token="</s>")
    assert str(tmp_path / "no.json") in e.value.what


@pytest.mark.parametrize("keep", [0, 400])
def test_a_file_cut_short_is_an_error(tokenizer_file, tmp_path, keep):
    (tmp_path / "t.json").write_text(tokenizer_file.read_text()[:keep])
    with pytest.raises(DataError, match=r"cannot be read as a tokenizer\.json"):
        build(tmp_path / "t.json", eos_token="</s>")


def test_a_tokenizer_without_an_eos_token_lists_what_could_be_one(tokenizer_file):
    with pytest.raises(DataError, match="needs the name of the token that ends a document") as e:
        build(tokenizer_file)
    assert e.value.hint == "Set eos_token; its special tokens are '<s>', '</s>', '<pad>'."


@pytest.mark.parametrize("field", ["eos_token", "bos_token", "pad_token"])
def test_a_special_token_that_is_not_in_the_vocabulary_is_named(tokenizer_file, field):
    names = {"eos_token": "</s>", field: "<|end|>"}
    with pytest.raises(DataError, match=rf"{field} is '<\|end\|>', which is not in") as e:
        build(tokenizer_file, **names)
    assert "'<s>', '</s>', '<pad>'" in e.value.hint


PIECE_TEXTS = ("naïve 😀 text", "  two  spaces\n", "x</s>y", "", "\x00 e\u0301 " + "w" * 300)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return train_pieces(tmp_path_factory.mktemp("pieces") / "tokenizer.model")


def build_pieces(path, **settings):
    return SentencePieceTokenizer.Config(path=str(path), **settings).build()


def test_tokens_and_text_are_the_librarys(model_file):
    sentencepiece = pytest.importorskip("sentencepiece")
    tokenizer = build_pieces(model_file)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    for text, tokens in zip(PIECE_TEXTS, tokenizer.encode_many(PIECE_TEXTS), strict=True):
        assert tokens.tolist() == reference.encode(text)
        assert tokenizer.decode(tokens) == reference.decode(reference.encode(text))
    assert tokenizer.eos_id not in tokenizer.encode("x</s>y")


def test_the_file_names_what_frames_a_document(model_file, tmp_path):
    tokenizer = build_pieces(model_file, vocab_multiple=64)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)
    assert tokenizer.vocab_size % 64 == 0
    (document,) = tokenizer.encode_documents(["text"])
    assert document.tolist() == [1, *tokenizer.encode("text"), 2]
    assert tokenizer.decode([*document, tokenizer.vocab_size - 1]) == "text"
    other = build_pieces(train_pieces(tmp_path / "t5.model", bos_id=-1, pad_id=3))
    assert (other.bos_id, other.eos_id, other.pad_id) == (None, 2, 3)


def test_a_model_without_an_end_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no token that ends a document"):
        build_pieces(train_pieces(tmp_path / "endless.model", eos_id=-1))


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist; looked for"):
        build_pieces(tmp_path / "none.model")
    (tmp_path / "torn.model").write_bytes(b"torn")
    with pytest.raises(DataError, match="cannot be read as a SentencePiece model"):
        build_pieces(tmp_path / "torn.model")
