"""Guesses from the text itself: what followed the last tokens when they were there before."""

from collections.abc import Iterable

from axcore.config import PositiveInt, config
from axcore.errors import ConfigError


@config
class NGramLookup:
    """Guesses tokens that followed the same ones earlier in prompt and answer.

    It needs no model, and helps where answers repeat their prompt: summaries, edits, code.

    Source: Saxena 2023, "Prompt lookup decoding".

    Args:
        num_tokens: Tokens that are guessed at most.
        longest: Tokens at the end of the text that are looked for first.
        shortest: Fewest that are looked for, where more were not found.
    """

    num_tokens: PositiveInt = 4
    longest: PositiveInt = 3
    shortest: PositiveInt = 2

    def check(self) -> None:
        """Raises ConfigError where a value makes no sense."""
        if self.shortest > self.longest:
            raise ConfigError(
                f"shortest is {self.shortest}, and longest {self.longest}",
                where="speculation.shortest",
                hint="look for as many tokens or fewer",
            )

    def index(self, text: Iterable[int]) -> "NGramIndex":
        """Returns what guesses for one text."""
        return NGramIndex(self, text)


class NGramIndex:
    """Where each run of tokens was last in one text; each new token costs `longest` entries.

    Args:
        cfg: How long the runs are.
        text: The tokens at the beginning.
    """

    def __init__(self, cfg: NGramLookup, text: Iterable[int] = ()) -> None:
        self._cfg = cfg
        self._text: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}
        self.push(text)

    def push(self, tokens: Iterable[int]) -> None:
        """Adds tokens to the text."""
        text, lengths = self._text, range(self._cfg.shortest, self._cfg.longest + 1)
        for token in tokens:
            for length in lengths:
                if length <= len(text):
                    self._follows[tuple(text[-length:])] = len(text)
            text.append(int(token))

    def guess(self) -> list[int]:
        """Returns tokens that may come next: as many as are guessed, or none.

        A guess that reaches the end of the text continues with itself.
        """
        for length in range(self._cfg.longest, self._cfg.shortest - 1, -1):
            start = self._follows.get(tuple(self._text[-length:]))
            if start is not None and length <= len(self._text):
                return self._copied(start)
        return []

    def _copied(self, start: int) -> list[int]:
        guess = self._text[start : start + self._cfg.num_tokens]
        period = len(self._text) - start
        while len(guess) < self._cfg.num_tokens:
            guess.append(guess[-period] if period <= len(guess) else guess[0])
        return guess
