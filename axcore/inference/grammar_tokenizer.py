"""Tokenizers as the library of grammars knows them: what bytes each token is."""

from typing import Any

from axcore.data import HuggingFaceTokenizer, Tokenizer
from axcore.errors import RequestError
from axcore.extras import import_extra
from axcore.inference.token_bytes import TokenBytes


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
    wrapped = TokenBytes(
        known_token_bytes(tokenizer),
        eos_id=tokenizer.eos_id,
        bos_id=tokenizer.bos_id,
        encode=lambda text: tokenizer.encode(text).tolist(),
    )
    return library.LLTokenizer(wrapped, eos_token=list(tokenizer.end_ids))


def known_token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token, none of special ones.

    Raises:
        RequestError: They are not known.
    """
    tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    if not any(tokens):
        is_file = isinstance(tokenizer, HuggingFaceTokenizer)
        why = "its tokenizer.json does not say it" if is_file else None
        raise _unknown(why or f"it is a {type(tokenizer).__name__}")
    return [token or b"" for token in tokens]


def _unknown(why: str) -> RequestError:
    return RequestError(
        f"grammars need to know which bytes each token is: {why}",
        where="tokenizer",
        hint="serve a model with a byte-level or SentencePiece tokenizer",
    )
