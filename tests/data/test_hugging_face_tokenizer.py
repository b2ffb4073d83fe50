"""Any `tokenizer.json`: the same tokens as the library gives, and no token lost."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from axcore.data import HuggingFaceTokenizer
from axcore.errors import DataError

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
