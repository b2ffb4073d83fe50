"""`IncrementalDetokenizer`: from tokens of a completion to its text, up to a stop string."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from axcore.data import Tokenizer, decoded
from axcore.errors import ConfigError


class _Stop(NamedTuple):
    """A stop string, and for each of its prefixes the longest shorter one that ends it."""

    text: str
    shorter: list[int]

    def follow(self, matched: int, letter: str) -> int:
        """Return how much of the string a text ends with, one letter after it was `matched`.

        Source: Knuth, Morris and Pratt 1977.
        """
        while matched and (matched == len(self.text) or self.text[matched] != letter):
            matched = self.shorter[matched]
        return matched + (self.text[matched] == letter)


class TextUpdate(NamedTuple):
    """What some tokens add to an answer.

    Args:
        text: Full characters, no part of a stop string.
        num_tokens: How many of the tokens belong to the answer; those after a stop string do not.
        is_stopped: Whether a stop string ended the answer.
    """

    text: str
    num_tokens: int
    is_stopped: bool


class IncrementalDetokenizer:
    """Decodes an answer as it grows and ends it before a stop string.

    Args:
        tokenizer: Its decoder writes no text of special tokens.
        prompt: The tokens before the answer.
        stops: What ends the answer; see `StopStrings`.
        visible: Special tokens that the text has by their names.
        includes_stop: Whether the text has the stop string that ended it.
        min_tokens: Tokens whose text has no stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Iterable[int] = (),
        stops: Sequence[str] = (),
        visible: Iterable[int] = (),
        *,
        includes_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._stream = TextStream(tokenizer, prompt, visible)
        self._stops = StopStrings(stops, includes_stop=includes_stop)
        self._has_stops = bool(stops)
        self._num_free = min_tokens

    def push(self, tokens: Sequence[int]) -> TextUpdate:
        """Return what tokens add."""
        if not self._has_stops:
            # Without stop strings several tokens are decoded at once.
            return TextUpdate(self._stream.push(tokens), len(tokens), False)
        text = ""
        # Token by token, for it matters which of them completes a stop string.
        for count, token in enumerate(tokens, start=1):
            written = self._stream.push([token])
            self._num_free -= 1
            text += written if self._num_free >= 0 else self._stops.push(written)
            if self._stops.is_stopped:
                return TextUpdate(text, count, True)
        return TextUpdate(text, len(tokens), False)

    def flush(self) -> TextUpdate:
        """Return what is left when no token follows; `num_tokens` is 0."""
        text = self._stops.push(self._stream.flush())
        return TextUpdate(text + self._stops.flush(), 0, self._stops.is_stopped)


# Enough for any word's beginning; decoding the full prompt at
# each token would make an answer's cost grow with its square.
CONTEXT = 8
"""Tokens before the answer that its first ones are decoded after."""


MAX_PENDING = 16
"""Tokens without a full character that are waited for; no character has as many bytes."""


_MAX_CUT = 3
"""Bytes of a character of UTF-8 that are not yet one."""


UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers decode bytes to that are not character, or not one yet."""


class TextStream:
    """Decodes an answer as it grows; each token is decoded a fixed number of times.

    The text of a token depends on those before it: a character may be several tokens, and
    SentencePiece drops the space in front of a text's first word. So new tokens are decoded after
    the last ones that gave text. Bytes that may yet become a character are kept back.

    Args:
        tokenizer: Its decoder writes no text of special tokens.
        prompt: The tokens before the answer.
        visible: Special tokens that the text has by their names.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Iterable[int] = (), visible: Iterable[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._names = {token: tokenizer.token_name(token) for token in visible}
        self._context = list(prompt)[-CONTEXT:]
        self._pending: list[int] = []
        # A prompt may end inside of a character: the answer completes it, or does not repeat it.
        self._prompt = self._decoded([])
        # Bytes at the end of the prompt that are not a character yet are part of the answer.
        self._num_given = len(self._prompt.rstrip(UNKNOWN))

    def push(self, tokens: Iterable[int]) -> str:
        """Return the text that is known with some tokens more, and was not before."""
        text = ""
        for token in tokens:
            name = self._names.get(int(token))
            if name is not None:
                # Bytes before it become no character by what follows it.
                text += self.flush() + name
                continue
            self._pending.append(int(token))
            if len(self._pending) > MAX_PENDING:
                text += self._known()
        return text + self._known()

    def flush(self) -> str:
        """Return what is left when no token follows."""
        return self._given(self._decoded(self._pending), is_whole=True)

    def _known(self) -> str:
        whole = self._decoded(self._pending)
        if not whole.endswith(UNKNOWN):
            return self._given(whole, is_whole=True)
        text = self._given(whole, is_whole=False)
        return text if len(self._pending) <= MAX_PENDING else text + self._first_pending(whole)

    def _first_pending(self, whole: str) -> str:
        """Give up waiting for the first pending tokens: what follows cannot change them."""
        # The latest cut at which both parts decode to what the
        # full does; the last bytes may belong to a character.
        for count in range(len(self._pending) - _MAX_CUT, 0, -1):
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
        """Return what is new in decoded text.

        Args:
            whole: The text of the context and all pending tokens.
            is_whole: Whether nothing of it can change; the pending tokens become the context then.
        """
        # A replacement character at the end may become a character with the next token.
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


class StopStrings:
    """Passes text on, but for what may be the beginning of a stop string.

    The string that is complete first ends the text; of several, the longest. Each letter is looked
    at once for each string.

    Args:
        stops: The strings.
        includes_stop: Whether the string that ended the text is part of it.

    Raises:
        ConfigError: One of them is empty.
    """

    def __init__(self, stops: Sequence[str], *, includes_stop: bool = False) -> None:
        self._includes_stop = includes_stop
        if not all(stops):
            raise ConfigError(
                f"a stop string is empty: {list(stops)!r}", hint="give strings of a letter or more"
            )
        self._stops = [_stop(text) for text in stops]
        self._matched = [0] * len(stops)
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """Return the text that belongs to the answer for sure; nothing after a stop string."""
        if self.is_stopped or not self._stops:
            return "" if self.is_stopped else text
        whole = self._held + text
        for place, letter in enumerate(text, start=len(self._held) + 1):
            pairs = zip(self._stops, self._matched, strict=True)
            self._matched = [stop.follow(matched, letter) for stop, matched in pairs]
            complete = self._complete()
            if complete:
                self.is_stopped, self._held = True, ""
                return whole[: place if self._includes_stop else place - complete]
        # The longest beginning of a stop string that the text ends with is kept back, and no more.
        num_known = len(whole) - max(self._matched)
        self._held = whole[num_known:]
        return whole[:num_known]

    def flush(self) -> str:
        """Return what was kept back, when no text follows."""
        held, self._held = self._held, ""
        return held

    def _complete(self) -> int:
        """Return the length of the longest string that is complete; 0 where none is."""
        pairs = zip(self._stops, self._matched, strict=True)
        return max(matched if matched == len(stop.text) else 0 for stop, matched in pairs)


@lru_cache(256)  # each answer of a request has the same ones
def _stop(text: str) -> _Stop:
    stop = _Stop(text, [0, 0])
    for letter in text[1:]:
        stop.shorter.append(stop.follow(stop.shorter[-1], letter))
    return stop
