"""`WrittenAnswer`: answers that a model writes, compared with the right ones."""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from axcore.config import PositiveInt, config
from axcore.errors import ConfigError
from axcore.evaluation.questions import Continuation
from axcore.evaluation.sample import Sample
from axcore.evaluation.scored_task import ScoredTask
from axcore.evaluation.template import fill

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class WrittenAnswer(ScoredTask):
    """Measures `exact_match`, and `f1` of words as SQuAD counts them."""

    @config
    class Config(ScoredTask.Config):
        """Describes a `WrittenAnswer`.

        Args:
            answer: The right answer, with `{name}` for values of the sample.
            separator: What is between the prompt and the answer of a solved example.
            derivation: What a solved example shows in place of the answer; empty shows that.
            max_tokens: Tokens of an answer at most.
            stop: Texts that end an answer.
            pattern: A regular expression that finds the answer in what was written, its first
                group where it has one; empty takes all of it. What has no match is wrong.
            takes_last: Whether the last match counts; otherwise the first.
            ignored: Regular expressions of what is removed from both before they are compared.
        """

        answer: str = "{answer}"
        separator: str = " "
        derivation: str = ""
        max_tokens: PositiveInt = 32
        stop: tuple[str, ...] = ("\n",)
        pattern: str = ""
        takes_last: bool = False
        ignored: tuple[str, ...] = ()

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._pattern = _compiled(cfg.pattern, "pattern") if cfg.pattern else None
        self._ignored = [_compiled(one, "ignored") for one in cfg.ignored]

    def questions(self, sample: Sample, before: str) -> tuple[Continuation, ...]:
        """Asks for an answer."""
        fill(self.config.answer, sample)
        return (
            Continuation(
                prompt=before + self.text(sample),
                max_tokens=self.config.max_tokens,
                stop=self.config.stop,
            ),
        )

    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Compares the answer."""
        expected = self._plain(fill(self.config.answer, sample))
        found = self.extracted(replies[0].text)
        given = None if found is None else self._plain(found)
        return {
            "exact_match": float(given == expected),
            "f1": 0.0 if given is None else word_f1(given, expected),
        }

    def solution(self, sample: Sample) -> str:
        """Returns the right answer, or its derivation."""
        return self.config.separator + fill(self.config.derivation or self.config.answer, sample)

    def extracted(self, text: str) -> str | None:
        """Returns the answer in what was written; None where the pattern finds none."""
        if self._pattern is None:
            return text
        matches = list(self._pattern.finditer(text))
        if not matches:
            return None
        match = matches[-1 if self.config.takes_last else 0]
        return next((group for group in match.groups() if group is not None), match[0])

    def _plain(self, text: str) -> str:
        for one in self._ignored:
            text = one.sub("", text)
        return text.strip()


def word_f1(given: str, expected: str) -> float:
    """Returns the harmonic mean of precision and recall of words.

    Case, punctuation and articles do not count.

    Source: Rajpurkar et al., 2016, arXiv:1606.05250, section 6.1.
    """
    first, second = _words(given), _words(expected)
    if not first or not second:
        return float(first == second)
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _compiled(pattern: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}", where=where) from None
