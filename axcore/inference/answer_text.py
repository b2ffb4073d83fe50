"""`AnswerText`: from the tokens of an answer to the text that its reader gets."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from axcore.data import Tokenizer
from axcore.inference.stop_strings import StopStrings
from axcore.inference.text_stream import TextStream


class TextUpdate(NamedTuple):
    """What some tokens add to an answer.

    Args:
        text: Whole characters, no part of a stop string.
        num_tokens: How many of the tokens belong to the answer; those after a stop string do not.
        is_stopped: Whether a stop string ended the answer.
    """

    text: str
    num_tokens: int
    is_stopped: bool


class AnswerText:
    """Decodes an answer as it grows and ends it before a stop string.

    Args:
        tokenizer: Its decoder writes no text of special tokens.
        prompt: The tokens before the answer.
        stops: What ends the answer; see `StopStrings`.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Iterable[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self._stream = TextStream(tokenizer, prompt)
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops)

    def push(self, tokens: Sequence[int]) -> TextUpdate:
        """Returns what tokens add."""
        if not self._has_stops:
            return TextUpdate(self._stream.push(tokens), len(tokens), False)
        text = ""
        for count, token in enumerate(tokens, start=1):
            text += self._stops.push(self._stream.push([token]))
            if self._stops.is_stopped:
                return TextUpdate(text, count, True)
        return TextUpdate(text, len(tokens), False)

    def flush(self) -> TextUpdate:
        """Returns what is left when no token follows; `num_tokens` is 0."""
        text = self._stops.push(self._stream.flush())
        return TextUpdate(text + self._stops.flush(), 0, self._stops.is_stopped)
