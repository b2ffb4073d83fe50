"""`TokenizerSuite`: text comes back from its tokens, and specials are never read out of text."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from axcore.config import from_json, to_json
from axcore.plugins import DataTokenizer
from axcore.registration import Record
from axcore.testing.suite import Suite

TEXTS = (
    "",
    "a",
    " ",
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x  # two  blanks\n\n\n",
    "\ttabs\tand \r\n other line ends\r",
    "0123456789 1e-5 3.14159",
    "Größe, naïve, Ελληνικά, русский, 日本語, العربية",
    "👍🏽 and 👨‍👩‍👧",
    "e\u0301 and \u00e9 are two texts",
    "x" * 3000,
    "x" * 2999 + "y",
    " " * 40 + "deep\n",
    "\ufeffa mark, and a zero: \x00",
    "<|endoftext|> </s> <s> [SEP] <pad> <|im_end|>",
)
"""Blanks, line ends, alphabets, joined signs, long words that begin alike, signs without a shape,
and what names of special tokens look like.
"""


class TokenizerSuite(Suite):
    """Proves tokenizers: `class TestTokenizers(TokenizerSuite): plugin = "axl-acme"`.

    Attributes:
        texts: What must come back from its tokens; a tokenizer of fewer letters has fewer.
        is_lossless: Whether texts come back as they were; otherwise what comes back has to come
            back from its own tokens.
    """

    kind: ClassVar[type[Record]] = DataTokenizer
    texts: ClassVar[tuple[str, ...]] = TEXTS
    is_lossless: ClassVar[bool] = True

    def make(self, record: DataTokenizer, folder: Path) -> Any:
        """Return the config of a tokenizer, whose files may be put in `folder`.

        Override where the config has fields to fill in.
        """
        return record.config.resolve()()

    @pytest.fixture
    def tokenizer_config(self, record: DataTokenizer, tmp_path: Path) -> Any:
        """The config of the tokenizer to test."""
        return self.make(record, tmp_path)

    @pytest.fixture
    def tokenizer(self, tokenizer_config: Any) -> Any:
        """The tokenizer to test."""
        return tokenizer_config.build()

    def test_text_comes_back_from_its_tokens(self, tokenizer: Any) -> None:
        """What a model writes is what it was trained on."""
        for text in self.texts:
            back = tokenizer.decode(tokenizer.encode(text))
            if not self.is_lossless:
                text, back = back, tokenizer.decode(tokenizer.encode(back))
            assert back == text, f"{text[:60]!r} comes back as {back[:60]!r}"

    def test_tokens_are_integers_below_the_size_of_the_vocabulary(self, tokenizer: Any) -> None:
        """A model has no row for others; `encode` refuses them by itself."""
        for text, tokens in zip(self.texts, tokenizer.encode_many(self.texts), strict=True):
            assert np.issubdtype(tokens.dtype, np.integer), f"{text[:60]!r}: {tokens.dtype}"
            assert tokens.ndim == 1, f"{text[:60]!r}: an array {list(tokens.shape)}"
            worst = [int(one) for one in tokens if not 0 <= one < tokenizer.vocab_size]
            assert not worst, f"{text[:60]!r} has {worst[0]}, of {tokenizer.vocab_size} tokens"
        assert len(tokenizer.encode("")) == 0, "an empty text has tokens"

    def test_texts_of_a_batch_do_not_change_each_other(self, tokenizer: Any) -> None:
        """Nor does a text that came before: documents are encoded in any order."""
        together = tokenizer.encode_many(self.texts)
        for text, tokens in reversed([*zip(self.texts, together, strict=True)]):
            (alone,) = tokenizer.encode_many([text])
            assert [*alone] == [*tokens], f"{text[:60]!r} has other tokens in a batch than alone"

    def test_special_tokens_have_numbers_of_their_own_and_no_text(self, tokenizer: Any) -> None:
        """What ends a document or fills a row is never part of a text."""
        specials = {"eos_id": tokenizer.eos_id, "pad_id": tokenizer.pad_id}
        if tokenizer.bos_id is not None:
            specials["bos_id"] = tokenizer.bos_id
        used = {int(one) for tokens in tokenizer.encode_many(self.texts) for one in tokens}
        for name, number in specials.items():
            assert 0 <= number < tokenizer.vocab_size, f"{name} is {number}, which is not a token"
            assert number not in used, f"{name} is {number}, which is a token of a text, too"
            text = tokenizer.decode([number])
            assert text == "", f"{name} is decoded as {text!r}; special tokens have no text"
            assert tokenizer.token_bytes(number) is None, f"{name} has bytes"
        assert tokenizer.eos_id in tokenizer.end_ids, "eos_id is not in end_ids"

    def test_bytes_of_tokens_are_those_of_the_text(self, tokenizer: Any) -> None:
        """Where a tokenizer knows them, a server streams and constrains by them."""
        for text in self.texts if self.is_lossless else ():
            pieces = [tokenizer.token_bytes(int(one)) for one in tokenizer.encode(text)]
            if None in pieces:
                pytest.skip("it does not know the bytes of its tokens")
            assert b"".join(pieces) == text.encode(), f"bytes of {text[:60]!r} are other ones"

    def test_documents_lie_between_bos_and_eos(self, tokenizer: Any) -> None:
        """Where there is a bos, it comes first, and once."""
        (tokens,) = tokenizer.encode_documents([self.texts[3]])
        before = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        assert [*tokens] == [*before, *tokenizer.encode(self.texts[3]), tokenizer.eos_id]

    def test_two_builds_are_the_same_and_config_is_read_back(self, tokenizer_config: Any) -> None:
        """A run directory contains it, and every process builds its own."""
        again = from_json(to_json(tokenizer_config))
        assert again == tokenizer_config
        first, second = tokenizer_config.build(), again.build()
        for text in self.texts:
            assert [*first.encode(text)] == [*second.encode(text)], f"{text[:60]!r} in two builds"
