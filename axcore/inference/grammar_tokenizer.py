"""Tokenizers as the library of grammars knows them: what bytes each token is."""

import json
from typing import Any

from axcore.data import ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer, Tokenizer
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
    library, ends = import_llguidance(), list(tokenizer.end_ids)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        try:
            return library.LLTokenizer(json.dumps(tokenizer.content), eos_token=ends)
        except ValueError as error:
            raise _unknown(f"its tokenizer.json does not say it: {error}") from error
    if isinstance(tokenizer, ByteTokenizer):
        tokens = [bytes([byte]) for byte in range(256)]
    elif isinstance(tokenizer, SentencePieceTokenizer):
        tokens = _pieces(tokenizer)
    else:
        raise _unknown(f"it is a {type(tokenizer).__name__}")
    return library.LLTokenizer(_TokenBytes(tokenizer, tokens), eos_token=ends)


class _TokenBytes:
    """What the library asks a tokenizer for; tokens without bytes are special ones."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes]) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokens + [b""] * (tokenizer.vocab_size - len(tokens))
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
            found: list[int] = self._tokenizer.encode(_BEFORE + whole.decode("utf-8")).tolist()
        except UnicodeDecodeError:
            return self._longest_first(whole)
        inside = found[len(self._before) :]
        is_same = b"".join(self.tokens[token] for token in inside) == whole
        return inside if is_same else self._longest_first(whole)

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


def _pieces(tokenizer: SentencePieceTokenizer) -> list[bytes]:
    """Returns the bytes of each piece; of control symbols none."""
    from sentencepiece import sentencepiece_model_pb2

    protos: Any = sentencepiece_model_pb2
    kinds = protos.ModelProto.SentencePiece
    pieces = protos.ModelProto.FromString(tokenizer.model_proto).pieces
    return [
        b""
        if piece.type in (kinds.CONTROL, kinds.UNKNOWN, kinds.UNUSED)
        else bytes([int(piece.piece[1:-1], 16)])
        if piece.type == kinds.BYTE
        else piece.piece.replace("▁", " ").encode("utf-8")
        for piece in pieces
    ]


def _unknown(why: str) -> RequestError:
    return RequestError(
        f"grammars need to know which bytes each token is: {why}",
        where="tokenizer",
        hint="serve a model with a byte-level or SentencePiece tokenizer",
    )
