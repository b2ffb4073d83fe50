"""`StopStrings`: ends a text before the first of some strings, however it is cut into pieces."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from axcore.errors import ConfigError


class _Stop(NamedTuple):
    """A stop string, and for each of its prefixes the longest shorter one that ends it."""

    text: str
    shorter: list[int]

    def follow(self, matched: int, letter: str) -> int:
        """Returns how much of the string a text ends with, one letter after it was `matched`.

        Source: Knuth, Morris and Pratt 1977.
        """
        while matched and (matched == len(self.text) or self.text[matched] != letter):
            matched = self.shorter[matched]
        return matched + (self.text[matched] == letter)


class StopStrings:
    """Passes text on, but for what may be the beginning of a stop string.

    The string that is complete first ends the text; of several, the longest. Each letter is looked
    at once for each string.

    Args:
        stops: The strings.

    Raises:
        ConfigError: One of them is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ConfigError(
                f"a stop string is empty: {list(stops)!r}", hint="give strings of a letter or more"
            )
        self._stops = [_stop(text) for text in stops]
        self._matched = [0] * len(stops)
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """Returns the text that belongs to the answer for sure; nothing after a stop string."""
        if self.is_stopped or not self._stops:
            return "" if self.is_stopped else text
        whole = self._held + text
        for place, letter in enumerate(text, start=len(self._held) + 1):
            pairs = zip(self._stops, self._matched, strict=True)
            self._matched = [stop.follow(matched, letter) for stop, matched in pairs]
            complete = self._complete()
            if complete:
                self.is_stopped, self._held = True, ""
                return whole[: place - complete]
        num_known = len(whole) - max(self._matched)
        self._held = whole[num_known:]
        return whole[:num_known]

    def flush(self) -> str:
        """Returns what was kept back, when no text follows."""
        held, self._held = self._held, ""
        return held

    def _complete(self) -> int:
        """Returns the length of the longest string that is complete; 0 where none is."""
        pairs = zip(self._stops, self._matched, strict=True)
        return max(matched if matched == len(stop.text) else 0 for stop, matched in pairs)


@lru_cache(256)  # each answer of a request has the same ones
def _stop(text: str) -> _Stop:
    stop = _Stop(text, [0, 0])
    for letter in text[1:]:
        stop.shorter.append(stop.follow(stop.shorter[-1], letter))
    return stop
