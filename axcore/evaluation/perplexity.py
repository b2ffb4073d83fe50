"""`Perplexity`: how well a model predicts texts."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from axcore.config import config
from axcore.errors import DataError
from axcore.evaluation.estimates import Estimate, exponential, ratio
from axcore.evaluation.questions import TextLikelihood
from axcore.evaluation.sample import Sample
from axcore.evaluation.scored_task import ScoredSample, ScoredTask

_SPACES = re.compile(r"\s+")


class Perplexity(ScoredTask):
    """Perplexity by token, by byte and by word, and bits per byte, which compare tokenizers fairly.

    Words are what white space divides a text into. Where samples are of several sources there is
    `bits_per_byte/SOURCE` of each.
    """

    @config
    class Config(ScoredTask.Config):
        """Describes a `Perplexity`.

        Args:
            prompt: The text, with `{name}` for values of the sample.
            source: The value that says where a text is from; empty where all are from one source.
        """

        prompt: str = "{text}"
        source: str = ""

    config: Config

    def questions(self, sample: Sample, before: str) -> tuple[TextLikelihood, ...]:
        """Asks how likely the whole text is."""
        text = self.text(sample)
        if not text:
            raise DataError("its text is empty", where=sample.where)
        self.source_of(sample)
        return (TextLikelihood(text=before + text),)

    def measures(self, sample: Sample, replies: Sequence[Any]) -> Mapping[str, float]:
        """Returns the log-probability of the text, and its sizes."""
        (reply,) = replies
        text = self.text(sample)
        return {
            "logprob": reply.logprob,
            "num_tokens": float(reply.num_tokens),
            "num_bytes": float(len(text.encode())),
            "num_words": float(len(_SPACES.split(text))),
        }

    def solution(self, sample: Sample) -> str:
        """Refuses: nothing is solved."""
        raise DataError(
            "a perplexity has no solved examples", where="num_shots", hint="set it to 0"
        )

    def source_of(self, sample: Sample) -> str:
        """Returns the value that the config names."""
        return str(sample.value(self.config.source)) if self.config.source else ""

    def metrics(self, scored: Sequence[ScoredSample]) -> dict[str, Estimate]:
        """Returns ratios of totals, not means over texts."""
        found = {
            f"{unit}_perplexity": exponential(_nats_per(scored, f"num_{unit}s"))
            for unit in ("token", "byte", "word")
        }
        found["bits_per_byte"] = _bits(scored)
        sources = sorted({one.source for one in scored})
        if sources != [""]:
            for source in sources:
                own = [one for one in scored if one.source == source]
                found[f"bits_per_byte/{source}"] = _bits(own)
        return found


def _bits(scored: Sequence[ScoredSample]) -> Estimate:
    return _nats_per(scored, "num_bytes", scale=1 / math.log(2))


def _nats_per(scored: Sequence[ScoredSample], unit: str, *, scale: float = 1.0) -> Estimate:
    nats = [-scale * one.measures["logprob"] for one in scored]
    return ratio(nats, [one.measures[unit] for one in scored])
