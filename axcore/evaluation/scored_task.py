"""`ScoredTask`: samples, what a model is asked of each, and how its replies are scored."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from axcore.config import REQUIRED, Configurable, NonNegativeInt, PositiveInt, config
from axcore.errors import DataError
from axcore.evaluation.estimates import Estimate, mean
from axcore.evaluation.questions import Question, Reply
from axcore.evaluation.sample import BadSample, Sample, SampleSource
from axcore.evaluation.template import fill


@attrs.frozen(kw_only=True)
class ScoredSample:
    """What was measured of a sample.

    Args:
        measures: Numbers by name.
        source: What of several texts it is from; empty where there is one.
    """

    measures: Mapping[str, float]
    source: str = ""


class ScoredTask(Configurable, ABC):
    """A task: a subclass says what is asked of a sample and how replies are scored."""

    @config
    class Config(Configurable.Config["ScoredTask"]):
        """Describes a `ScoredTask`.

        Args:
            samples: Where the samples are.
            shots: Where solved examples are taken from; None takes other samples.
            num_shots: Solved examples before each question: the first ones that are not the
                sample itself.
            limit: Only so many samples; None takes all.
            description: What comes before everything else.
            prompt: What is asked, with `{name}` for values of the sample.
        """

        samples: SampleSource.Config = REQUIRED
        shots: SampleSource.Config | None = None
        num_shots: NonNegativeInt = 0
        limit: PositiveInt | None = None
        description: str = ""
        prompt: str = "{prompt}"

    @abstractmethod
    def questions(self, sample: Sample, before: str) -> tuple[Question, ...]:
        """Returns what is asked of a sample.

        Args:
            sample: The sample.
            before: Description and solved examples.

        Raises:
            DataError: The sample is malformed.
        """

    @abstractmethod
    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Returns what is measured of the replies to a sample's questions, numbers by name."""

    @abstractmethod
    def solution(self, sample: Sample) -> str:
        """Returns what follows the prompt in a solved example, its separator included.

        Raises:
            DataError: The sample is malformed, or the task has no solved examples.
        """

    def metrics(self, scored: Sequence[ScoredSample]) -> dict[str, Estimate]:
        """Returns the metrics of all samples: the mean of each measure."""
        names = scored[0].measures
        return {name: mean([one.measures[name] for one in scored]) for name in names}

    def source_of(self, sample: Sample) -> str:
        """Returns which of several texts a sample is from."""
        return ""

    def samples(self) -> Iterator[Sample | BadSample]:
        """Yields the samples, as many as the config wants."""
        return itertools.islice(self.config.samples.build().samples(), self.config.limit)

    def solved(self) -> tuple[Sample, ...]:
        """Returns the examples to choose solved ones from: one more than are shown.

        Raises:
            DataError: There are too few.
        """
        wanted = self.config.num_shots
        if not wanted:
            return ()
        source = self.config.shots or self.config.samples
        whole = (one for one in source.build().samples() if isinstance(one, Sample))
        found = tuple(itertools.islice(whole, wanted + 1))
        if len(found) < wanted + (self.config.shots is None):
            raise DataError(
                f"num_shots is {wanted}, and there are {len(found)} samples to take them from",
                where="num_shots",
                hint="ask for fewer",
            )
        return found

    def before(self, sample: Sample, solved: Sequence[Sample]) -> str:
        """Returns the description and the solved examples that precede a sample."""
        others = [one for one in solved if one.where != sample.where][: self.config.num_shots]
        parts = [f"{self.text(one)}{self.solution(one)}\n\n" for one in others]
        return self.config.description + "".join(parts)

    def text(self, sample: Sample) -> str:
        """Returns the prompt of a sample alone."""
        return fill(self.config.prompt, sample)


def scores(replies: Sequence[Reply]) -> list[float]:
    """Returns the log-probabilities of replies to `Likelihood`."""
    return [reply.logprob for reply in replies]  # type: ignore[union-attr]
