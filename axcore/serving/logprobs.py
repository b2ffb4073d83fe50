"""`TokenTexts`: how responses write single tokens, and the log-probabilities of several."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from axcore.data import Tokenizer
from axcore.inference import SampledToken
from axcore.inference.completion import TopLogprobs

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LEAST = -9999.0
"""What stands in for minus infinity, which JSON cannot write; OpenAI's API has the same."""


class _WrittenToken(NamedTuple):
    """A token as responses have it.

    Args:
        text: Its text, or its number.
        size: Letters that it adds to a text.
        content: Its bytes, also where they are a part of a character; None of a special token.
    """

    text: str
    size: int
    content: bytes | None


class TokenTexts:
    """Writes tokens of one tokenizer.

    A token that is not text by itself, a part of a letter or one that ends a text, is written as
    `token_id:NUMBER`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._written = lru_cache(maxsize=1 << 16)(self._read)

    def text(self, token: int) -> str:
        """Return the text of a token."""
        return self._written(token).text

    def as_completion(
        self, tokens: Sequence[SampledToken], offset: int
    ) -> tuple[dict[str, Any], int]:
        """Return log-probabilities as `/v1/completions` has them, and the offset after them.

        Args:
            tokens: The tokens.
            offset: Letters of the choice's text before them.
        """
        offsets, written = [], [self._written(token.id) for token in tokens]
        for one in written:
            offsets.append(offset)
            offset += one.size
        content = {
            "tokens": [one.text for one in written],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [self._by_text(token) or None for token in tokens],
            "text_offset": offsets,
        }
        return content, offset

    def as_chat(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        """Return log-probabilities as `/v1/chat/completions` has them."""
        content = []
        for token in tokens:
            top_logprobs = [self._entry(number, logprob) for number, logprob in token.top_logprobs]
            content.append({**self._entry(token.id, token.logprob), "top_logprobs": top_logprobs})
        return {"content": content, "refusal": None}

    def as_prompt(
        self,
        prompt: Sequence[int],
        logprobs: Sequence[float | None],
        top_logprobs: Sequence[TopLogprobs | None],
        num_top: int,
    ) -> list[dict[str, Any] | None]:
        """Return log-probabilities of a prompt as vLLM has them, by the numbers of tokens.

        The rank of a token that is not among the likeliest is not known.
        """
        found: list[dict[str, Any] | None] = []
        for token, logprob, top in zip(prompt, logprobs, top_logprobs, strict=True):
            if logprob is None:
                found.append(None)  # nothing comes before the first
                continue
            ranks = {one: rank for rank, (one, _) in enumerate(top or (), start=1)}
            listed = {token: logprob, **dict((top or ())[:num_top])}
            found.append(
                {
                    str(one): {
                        "logprob": _finite(value),
                        "rank": ranks.get(one),
                        "decoded_token": self.text(one),
                    }
                    for one, value in listed.items()
                }
            )
        return found

    def _by_text(self, token: SampledToken) -> dict[str, float | None]:
        """Return the likeliest tokens by their text; of those with one text the likeliest one."""
        found: dict[str, float | None] = {}
        for number, logprob in token.top_logprobs:
            found.setdefault(self.text(number), _finite(logprob))
        return found

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        written = self._written(token)
        content = None if written.content is None else list(written.content)
        return {"token": written.text, "logprob": _finite(logprob), "bytes": content}

    def _read(self, token: int) -> _WrittenToken:
        content = self._tokenizer.token_bytes(token)
        if content is None:  # a special token, or one of a tokenizer that does not know its bytes
            text = self._tokenizer.decode([token])
            content = text.encode() if text and _REPLACEMENT not in text else None
        try:
            text = (content or b"").decode()
        except UnicodeDecodeError:  # a part of a character
            text = ""
        return _WrittenToken(text or f"token_id:{token}", len(text), content)


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _LEAST)
