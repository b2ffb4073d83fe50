"""Sums as samples: as many as are wanted, the same ones everywhere."""

from collections.abc import Iterator

import numpy as np

from axcore.config import PositiveInt, config
from axcore.evaluation.sample import Sample, SampleSource
from axcore.evaluation.written_answer import WrittenAnswer


class Sums(SampleSource):
    """Additions and subtractions of two numbers, with the values `prompt` and `answer`."""

    @config
    class Config(SampleSource.Config):
        """Describes `Sums`.

        Args:
            num: Samples there are.
            num_digits: Digits of each number at most.
        """

        num: PositiveInt = 200
        num_digits: PositiveInt = 2

    config: Config

    def samples(self) -> Iterator[Sample]:
        """Yields the sums."""
        draws = np.random.default_rng(0)
        for number in range(self.config.num):
            first, second = (int(one) for one in draws.integers(0, 10**self.config.num_digits, 2))
            is_sum = bool(draws.integers(2))
            answer = first + second if is_sum else first - second
            prompt = f"{first} {'+' if is_sum else '-'} {second} ="
            fields = {"prompt": prompt, "answer": str(answer)}
            yield Sample(where=f"sum {number}", fields=fields)


def arithmetic() -> WrittenAnswer.Config:
    """Returns the task of writing the results of sums."""
    return WrittenAnswer.Config(samples=Sums.Config(), max_tokens=8, pattern=r"-?\d+", stop=("\n",))
