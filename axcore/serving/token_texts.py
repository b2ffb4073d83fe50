"""`TokenTexts`: how responses write single tokens, and the log-probabilities of several."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from axcore.data import Tokenizer
from axcore.inference import DrawnToken

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LEAST = -9999.0
"""What stands in for minus infinity, which JSON cannot write; OpenAI's API has the same."""


class TokenTexts:
    """Writes tokens of one tokenizer.

    A token that is no text by itself, a part of a letter or one that ends a text, is written as
    `token_id:NUMBER`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = lru_cache(maxsize=1 << 16)(self._read)

    def text(self, token: int) -> str:
        """Returns the text of a token."""
        return self._text(token)[0]

    def as_completion(
        self, tokens: Sequence[DrawnToken], offset: int
    ) -> tuple[dict[str, Any], int]:
        """Returns log-probabilities as `/v1/completions` has them, and the offset after them.

        Args:
            tokens: The tokens.
            offset: Letters of the choice's text before them.
        """
        offsets, texts = [], [self._text(token.id) for token in tokens]
        for _, size in texts:
            offsets.append(offset)
            offset += size
        content = {
            "tokens": [text for text, _ in texts],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {self.text(number): _finite(logprob) for number, logprob in token.likeliest} or None
                for token in tokens
            ],
            "text_offset": offsets,
        }
        return content, offset

    def as_chat(self, tokens: Sequence[DrawnToken]) -> dict[str, Any]:
        """Returns log-probabilities as `/v1/chat/completions` has them."""
        content = []
        for token in tokens:
            likeliest = [self._entry(number, logprob) for number, logprob in token.likeliest]
            content.append({**self._entry(token.id, token.logprob), "top_logprobs": likeliest})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        text, size = self._text(token)
        written = list(text.encode()) if size else None
        return {"token": text, "logprob": _finite(logprob), "bytes": written}

    def _read(self, token: int) -> tuple[str, int]:
        """Returns a token as it is written, and how many letters it adds to a text."""
        text = self._tokenizer.decode([token])
        if not text or _REPLACEMENT in text:
            return f"token_id:{token}", 0
        return text, len(text)


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _LEAST)
