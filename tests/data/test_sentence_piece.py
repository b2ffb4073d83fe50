"""SentencePiece models: the library's own tokens, framed by those that the file names."""

import pytest
from pieces import train_pieces

from axcore.data import SentencePieceTokenizer
from axcore.errors import DataError

sentencepiece = pytest.importorskip("sentencepiece")

TEXTS = ("naïve 😀 text", "  two  spaces\n", "x</s>y", "", "\x00 e\u0301 " + "w" * 300)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return train_pieces(tmp_path_factory.mktemp("pieces") / "tokenizer.model")


def build(path, **settings):
    return SentencePieceTokenizer.Config(path=str(path), **settings).build()


def test_tokens_and_text_are_the_librarys(model_file):
    tokenizer = build(model_file)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    for text, tokens in zip(TEXTS, tokenizer.encode_many(TEXTS), strict=True):
        assert tokens.tolist() == reference.encode(text)
        assert tokenizer.decode(tokens) == reference.decode(reference.encode(text))
    assert tokenizer.eos_id not in tokenizer.encode("x</s>y")


def test_the_file_names_what_frames_a_document(model_file, tmp_path):
    tokenizer = build(model_file, vocab_multiple=64)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)
    assert tokenizer.vocab_size % 64 == 0
    (document,) = tokenizer.encode_documents(["text"])
    assert document.tolist() == [1, *tokenizer.encode("text"), 2]
    assert tokenizer.decode([*document, tokenizer.vocab_size - 1]) == "text"
    other = build(train_pieces(tmp_path / "t5.model", bos_id=-1, pad_id=3))
    assert (other.bos_id, other.eos_id, other.pad_id) == (None, 2, 3)


def test_a_model_without_an_end_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no token that ends a document"):
        build(train_pieces(tmp_path / "endless.model", eos_id=-1))


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist; looked for"):
        build(tmp_path / "none.model")
    (tmp_path / "torn.model").write_bytes(b"torn")
    with pytest.raises(DataError, match="cannot be read as a SentencePiece model"):
        build(tmp_path / "torn.model")
