"""`TokenBytes`: a vocabulary as the library of grammars asks for it.

It imports nothing of axcore's, so that worker processes start at once.
"""

from collections.abc import Callable, Sequence

BEFORE = "\x02"
"""Is put before a text that is encoded, so that no space is added in front of it."""


class TokenBytes:
    """What the library asks a tokenizer for; tokens without bytes are special ones.

    A tokenizer.json is not given to the library as it is: it takes every added token for a special
    one, also those that are text, as `<tool_call>` of Qwen or runs of spaces, and then nothing can
    match a text that contains one.

    Args:
        tokens: The bytes of each; empty for special ones.
        eos_id: What ends a text.
        bos_id: What begins one, if anything does.
        encode: The tokenizer's; without one, texts become the longest tokens that fit.
    """

    is_tokenizer_wrapper = True

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        eos_id: int,
        bos_id: int | None,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self._encode = encode
        self.tokens = list(tokens)
        self.eos_token_id, self.bos_token_id = eos_id, bos_id
        self.special_token_ids = [i for i, token in enumerate(self.tokens) if not token]
        for special in self.special_token_ids:
            # The library wants bytes for each; these cannot be in a text by accident.
            self.tokens[special] = b"<token %d>" % special

        self._known = {token: number for number, token in enumerate(self.tokens)}
        self._longest = max(map(len, self.tokens))
        self._before = len(encode(BEFORE)) if encode else 0

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text inside of another; they have exactly its bytes."""
        whole = text.encode("utf-8") if isinstance(text, str) else text
        try:
            decoded = whole.decode("utf-8")
        except UnicodeDecodeError:
            return self._longest_first(whole)
        if self._encode is None:
            return self._longest_first(whole)
        # A text inside of another begins without the space that some tokenizers put before texts.
        for before, skipped in (("", 0), (BEFORE, self._before)):
            found = self._encode(before + decoded)[skipped:]
            # Taken only if the bytes are exactly those:
            # tokenizers normalise, and a grammar is about bytes.
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
