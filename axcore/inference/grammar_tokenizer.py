"""Tokenizers as the library of grammars knows them: what bytes each token is."""

from typing import Any

from axcore.data import HuggingFaceTokenizer, Tokenizer
from axcore.errors import RequestError
from axcore.extras import import_extra

_BEFORE = "\x02"
"""Is put before a text that is encoded, so that no space is added in front of it."""


def import_llguidance() -> Any:
    """Returns the library.

    Raises:
        RequestError: It is not installed.
    """
    return import_extra("llguidance", used_by="a grammar", error=RequestError, where="grammar")


def grammar_tokenizer(tokenizer: Tokenizer) -> Any:
    """Returns the library's tokenizer with the same tokens.

    Raises:
        RequestError: What bytes its tokens are is not known.
    """
    library = import_llguidance()
    tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    if not any(tokens):
        is_file = isinstance(tokenizer, HuggingFaceTokenizer)
        why = "its tokenizer.json does not say it" if is_file else None
        raise _unknown(why or f"it is a {type(tokenizer).__name__}")
    wrapped = _TokenBytes(tokenizer, [token or b"" for token in tokens])
    return library.LLTokenizer(wrapped, eos_token=list(tokenizer.end_ids))


class _TokenBytes:
    """What the library asks a tokenizer for; tokens without bytes are special ones.

    A tokenizer.json is not given to the library as it is: it takes every added token for a special
    one, also those that are text, as `<tool_call>` of Qwen or runs of spaces, and then nothing can
    match a text that holds one.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes]) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokens
        self.eos_token_id = tokenizer.eos_id
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [i for i, token in enumerate(self.tokens) if not token]
        for special in self.special_token_ids:
            self.tokens[special] = b"<token %d>" % special

        self._known = {token: number for number, token in enumerate(self.tokens)}
        self._longest = max(map(len, self.tokens))
        self._before: list[int] = tokenizer.encode(_BEFORE).tolist()

    def __call__(self, text: str | bytes) -> list[int]:
        """Returns the tokens of a text inside of another; they have exactly its bytes."""
        whole = text.encode("utf-8") if isinstance(text, str) else text
        try:
            decoded = whole.decode("utf-8")
        except UnicodeDecodeError:
            return self._longest_first(whole)
        # A text inside of another begins without the space that some tokenizers put before texts.
        for before, skipped in (("", 0), (_BEFORE, len(self._before))):
            found: list[int] = self._tokenizer.encode(before + decoded).tolist()[skipped:]
            if b"".join(self.tokens[token] for token in found) == whole:
                return found
        return self._longest_first(whole)

    def _longest_first(self, text: bytes) -> list[int]:
        found: list[int] = []
        place = 0
        while place < len(text):
            ends = range(min(len(text), place + self._longest), place, -1)
            end = next((end for end in ends if text[place:end] in self._known), None)
            if end is None:
                return found  # the library takes the rest as unforced
            found.append(self._known[text[place:end]])
            place = end
        return found


def _unknown(why: str) -> RequestError:
    return RequestError(
        f"grammars need to know which bytes each token is: {why}",
        where="tokenizer",
        hint="serve a model with a byte-level or SentencePiece tokenizer",
    )
