"""`MultipleChoice`: which of several continuations a model finds the likeliest."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from axcore.config import config
from axcore.errors import DataError
from axcore.evaluation.questions import Likelihood
from axcore.evaluation.sample import Sample
from axcore.evaluation.scored_task import ScoredTask


class MultipleChoice(ScoredTask):
    """The choice with the largest log-probability is the model's.

    Measures: `accuracy`; `accuracy_per_byte`, of log-probabilities divided by the bytes of the
    choice; `accuracy_per_character`, divided by its characters; `accuracy_per_token`, divided by
    its tokens. Of equal ones the first counts.
    """

    @config
    class Config(ScoredTask.Config):
        """Describes a `MultipleChoice`.

        Args:
            choices: The value that lists the choices.
            answer: The value that says which is right: its number from 0, or its text.
            separator: What is between the prompt and each choice, and is scored with it.
        """

        choices: str = "choices"
        answer: str = "answer"
        separator: str = " "

    config: Config

    def questions(self, sample: Sample, before: str) -> tuple[Likelihood, ...]:
        """Asks how likely each choice is."""
        self._answer(sample)
        context = before + self.text(sample)
        return tuple(
            Likelihood(context=context, continuation=self.config.separator + choice)
            for choice in self._choices(sample)
        )

    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Compares the likeliest choice with the right one."""
        logprobs = np.array([reply.logprob for reply in replies])
        choices, right = self._choices(sample), self._answer(sample)
        sizes = {
            "accuracy": [1] * len(choices),
            "accuracy_per_byte": [len(choice.encode()) for choice in choices],
            "accuracy_per_character": [len(choice) for choice in choices],
            "accuracy_per_token": [reply.num_tokens for reply in replies],
        }
        return {
            name: float(np.argmax(logprobs / np.maximum(size, 1)) == right)
            for name, size in sizes.items()
        }

    def solution(self, sample: Sample) -> str:
        """Returns the right choice."""
        return self.config.separator + self._choices(sample)[self._answer(sample)]

    def _choices(self, sample: Sample) -> list[str]:
        name = self.config.choices
        found = sample.value(name)
        is_list = isinstance(found, list | tuple) and len(found) > 1
        if not (is_list and all(isinstance(one, str) and one for one in found)):
            raise DataError(
                f"{name!r} is {found!r:.60}; expected a list of two texts or more",
                where=sample.where,
            )
        return list(found)

    def _answer(self, sample: Sample) -> int:
        """Returns the number of the right choice."""
        name, choices = self.config.answer, self._choices(sample)
        found = sample.value(name)
        if isinstance(found, str):
            if found in choices:
                return choices.index(found)
            found = int(found) if found.isascii() and found.isdigit() else found
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < len(choices):
            raise DataError(
                f"{name!r} is {found!r:.60}; expected one of the choices, or a number from 0 to "
                f"{len(choices) - 1}",
                where=sample.where,
            )
        return found
