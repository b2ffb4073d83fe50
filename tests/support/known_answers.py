"""A model that knows every answer, for tests of how answers are asked for, kept and scored."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from axcore.config import config
from axcore.evaluation import (
    BadSample,
    Continuation,
    ModelIdentity,
    Sample,
    SampleSource,
    Scored,
    Written,
)

IDENTITY = ModelIdentity(name="known", step=None, weights="1")

QUESTIONS = (
    {"prompt": "a", "choices": ["xx", "y"], "answer": 0},
    {"prompt": "b", "choices": ["x", "yyy"], "answer": "x"},
)


@attrs.frozen
class Ready:
    """A reply that is there, or never comes."""

    value: Any

    def reply(self, timeout_s: float) -> Any:
        if self.value is None:
            raise TimeoutError
        return self.value


@attrs.define
class KnownAnswers:
    """Writes what a table says, and finds texts that a function likes likely."""

    texts: Mapping[str, str | None] = attrs.Factory(dict)
    logprob: Callable[[str], float] = len
    asked: list[Any] = attrs.Factory(list)

    def ask(self, question: Any) -> Ready:
        self.asked.append(question)
        if isinstance(question, Continuation):
            text = self.texts[question.prompt]
            return Ready(text and Written(text=text, num_tokens=1, finish_reason="stop"))
        scored = getattr(question, "continuation", None) or question.text
        value = self.logprob(scored)
        return Ready(Scored(logprob=value, num_tokens=len(scored), is_greedy=False))


class Listed(SampleSource):
    """Samples that a test lists, as JSON; what is none is malformed."""

    @config
    class Config(SampleSource.Config):
        """Which."""

        rows: tuple[str, ...] = ()

    def samples(self):
        for number, row in enumerate(self.config.rows):
            if row.startswith("{"):
                yield Sample(where=f"rows:{number}", fields=json.loads(row))
            else:
                yield BadSample(where=f"rows:{number}", reason=row)


def listed(*rows):
    """Returns samples; a text is a malformed one and its reason."""
    return Listed.Config(rows=[row if isinstance(row, str) else json.dumps(row) for row in rows])
