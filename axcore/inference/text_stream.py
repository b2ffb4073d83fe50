"""`TextStream`: the text of tokens that come one after the other, in whole characters."""

from collections.abc import Iterable
from itertools import takewhile

from axcore.data import Tokenizer, decoded

CONTEXT = 8
"""Tokens before the answer that its first ones are decoded after."""

MAX_PENDING = 16
"""Tokens without a whole character that are waited for; no character has as many bytes."""

MAX_CUT = 3
"""Bytes of a character of UTF-8 that are not yet one."""

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers decode bytes to that are no character, or not one yet."""


class TextStream:
    """Decodes an answer as it grows; each token is decoded a fixed number of times.

    The text of a token depends on those before it: a character may be several tokens, and
    SentencePiece drops the space in front of a text's first word. So new tokens are decoded after
    the last ones that gave text. Bytes that may yet become a character are kept back.

    Args:
        tokenizer: Its decoder writes no text of special tokens.
        prompt: The tokens before the answer.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt)[-CONTEXT:]
        self._pending: list[int] = []
        # A prompt may end inside of a character: the answer completes it, or does not repeat it.
        self._prompt = self._decoded([])
        self._num_given = len(self._prompt.rstrip(UNKNOWN))

    def push(self, tokens: Iterable[int]) -> str:
        """Returns the text that is known with some tokens more, and was not before."""
        text = ""
        for token in tokens:
            self._pending.append(int(token))
            if len(self._pending) > MAX_PENDING:
                text += self._known()
        return text + self._known()

    def flush(self) -> str:
        """Returns what is left when no token follows."""
        return self._given(self._decoded(self._pending), is_whole=True)

    def _known(self) -> str:
        whole = self._decoded(self._pending)
        if not whole.endswith(UNKNOWN):
            return self._given(whole, is_whole=True)
        text = self._given(whole, is_whole=False)
        return text if len(self._pending) <= MAX_PENDING else text + self._first_pending(whole)

    def _first_pending(self, whole: str) -> str:
        """Gives up waiting for the first pending tokens: what follows cannot change them."""
        for count in range(len(self._pending) - MAX_CUT, 0, -1):
            start, rest = self._pending[:count], self._pending[count:]
            known = self._decoded(start)
            if known + decoded(self._tokenizer, rest) == whole:
                text = known[self._num_given :]
                given_of_rest = max(0, self._num_given - len(known))
                self._context, self._pending = start, rest
                self._num_given = len(self._decoded([])) + given_of_rest
                return text
        return self._given(whole, is_whole=True)

    def _given(self, whole: str, *, is_whole: bool) -> str:
        """Returns what is new in decoded text.

        Args:
            whole: The text of the context and all pending tokens.
            is_whole: Whether nothing of it can change; the pending tokens become the context then.
        """
        known = whole if is_whole else whole.rstrip(UNKNOWN)
        if self._prompt:
            pairs = zip(self._prompt, known, strict=False)
            num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self._num_given = max(self._num_given, num_same)
        new = known[self._num_given :]
        self._num_given += len(new)
        if is_whole and (new or len(self._pending) > MAX_PENDING):
            self._context = self._pending if new else self._context
            self._pending = []
            self._num_given = len(self._decoded([]))
        if new:
            self._prompt = ""
        return new

    def _decoded(self, tokens: list[int]) -> str:
        return decoded(self._tokenizer, self._context + tokens)
