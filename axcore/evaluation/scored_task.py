"""`ScoredTask`: questions about samples, and metrics with their standard errors."""

import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from axcore.config import REQUIRED, Configurable, NonNegativeInt, PositiveInt, config
from axcore.errors import DataError
from axcore.evaluation.questions import Question, Reply
from axcore.evaluation.samples import BadSample, Sample, SampleSource


@attrs.frozen
class Estimate:
    """A metric over samples.

    Args:
        value: Its value.
        standard_error: Of the value, as samples vary; None with fewer than two samples.
        is_better_higher: Whether more is better.
    """

    value: float
    standard_error: float | None
    is_better_higher: bool = True


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean, and the standard deviation of samples over the root of their number."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return Estimate(float(array.mean()), None)
    return Estimate(float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array))))


def ratio(sums: Sequence[float], weights: Sequence[float]) -> Estimate:
    """Return the ratio of two totals; lower is better, as of a loss.

    Source: the ratio estimator of survey sampling (Cochran, 1977, equation 6.13).
    """
    above, below = (np.asarray(one, np.float64) for one in (sums, weights))
    total = below.sum()
    value = float(above.sum() / total)
    if len(above) < 2:
        return Estimate(value, None, is_better_higher=False)
    spread = float(((above - value * below) ** 2).sum())
    count = len(above)
    error = math.sqrt(spread * count / (count - 1)) / float(total)
    return Estimate(value, error, is_better_higher=False)


def exponential(of: Estimate) -> Estimate:
    """Return `exp` of an estimate, its error to first order; infinite beyond float64."""
    value = math.exp(of.value) if of.value < 700 else math.inf
    error = None if of.standard_error is None else value * of.standard_error
    return Estimate(value, error, of.is_better_higher)


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
        """Return what is asked of a sample.

        Args:
            sample: The sample.
            before: Description and solved examples.

        Raises:
            DataError: The sample is malformed.
        """

    @abstractmethod
    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Return what is measured of the replies to a sample's questions, numbers by name."""

    @abstractmethod
    def solution(self, sample: Sample) -> str:
        """Return what follows the prompt in a solved example, its separator included.

        Raises:
            DataError: The sample is malformed, or the task has no solved examples.
        """

    def metrics(self, scored: Sequence[ScoredSample]) -> dict[str, Estimate]:
        """Return the metrics of all samples: the mean of each measure."""
        names = scored[0].measures
        return {name: mean([one.measures[name] for one in scored]) for name in names}

    def source_of(self, sample: Sample) -> str:
        """Return which of several texts a sample is from."""
        return ""

    def samples(self) -> Iterator[Sample | BadSample]:
        """Yield the samples, as many as the config wants."""
        return itertools.islice(self.config.samples.build().samples(), self.config.limit)

    def solved(self) -> tuple[Sample, ...]:
        """Return the examples to choose solved ones from: one more than are shown.

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
        """Return the description and the solved examples that precede a sample."""
        others = [one for one in solved if one.where != sample.where][: self.config.num_shots]
        parts = [f"{self.text(one)}{self.solution(one)}\n\n" for one in others]
        return self.config.description + "".join(parts)

    def text(self, sample: Sample) -> str:
        """Return the prompt of a sample alone."""
        return fill(self.config.prompt, sample)


def scores(replies: Sequence[Reply]) -> list[float]:
    """Return the log-probabilities of replies to `Likelihood`."""
    return [reply.logprob for reply in replies]  # type: ignore[union-attr]


_FIELD = re.compile(r"\{(\w+)\}")


def fill(template: str, sample: Sample) -> str:
    """Return a template with each `{name}` replaced by that value of a sample.

    Raises:
        DataError: The sample has no such value, or it is neither text nor a number.
    """
    return _FIELD.sub(lambda match: _text(sample, match[1]), template)


def _text(sample: Sample, name: str) -> str:
    value = sample.value(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{name!r} is {value!r:.40}; expected text or a number", where=sample.where)
    return str(value)
