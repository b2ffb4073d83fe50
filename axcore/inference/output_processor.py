"""`Task`: a request at work, with its answer and its place in the schedule."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
import numpy as np
from jaxtyping import Array

from axcore.errors import EngineError
from axcore.inference.adapters import WITHOUT_ADAPTER, NumberedAdapter
from axcore.inference.completion import Answer, TokenLogprobs
from axcore.inference.grammar import GrammarCompiler, GrammarMatcher
from axcore.inference.model_functions import Drawn
from axcore.inference.request import Request
from axcore.inference.sampler import LogProbs
from axcore.inference.schedule import Call, Job
from axcore.inference.speculation import DraftModel, Guesses, NGramLookup


@attrs.define(eq=False)
class Task:
    """A request at work.

    Args:
        answer: Where its tokens go.
        job: Its place in the schedule.
        matcher: Where it is in its grammar, if it has one.
        scores: Of the prompt's tokens after the first, once some are there; see `Programs.score`.
        index: Guesses its next tokens, where the engine guesses.
        adapter: What it is answered by.
    """

    answer: Answer
    job: Job
    matcher: GrammarMatcher | None = None
    scores: TokenLogprobs | None = None
    index: Guesses | None = None
    adapter: NumberedAdapter = WITHOUT_ADAPTER

    @property
    def request(self) -> Request:
        """What is asked."""
        return self.answer.request


OnFailure = Callable[[EngineError, Sequence[Task]], None]
"""Is called in the thread of an engine of which a step failed, with why, and all requests that are
not answered, in the order of arrival. It ends them, or has another engine take them over."""


def fail_all(error: EngineError, tasks: Sequence[Task]) -> None:
    """Ends requests with an error."""
    for task in tasks:
        task.answer.fail(error)


def new_task(
    answer: Answer,
    number: int,
    *,
    grammars: GrammarCompiler,
    speculation: NGramLookup | DraftModel | None,
) -> Task:
    """Returns a request that no step has begun.

    Args:
        answer: To the request.
        number: Of the request, in the order of arrival.
        grammars: Compiles its grammar, if it has one.
        speculation: How its tokens are guessed ahead.

    Raises:
        RequestError: Its grammar is none.
    """
    request = answer.request
    size = len(request.prompt)
    job = Job(
        number=number,
        priority=request.priority,
        text=np.asarray(request.prompt, np.int32),
        num_prompt=size,
        limit=size + request.max_tokens,
        one_by_one=request.grammar is not None,
        reads_alone=request.prompt_logprobs,
    )
    return Task(
        answer,
        job,
        matcher=None if request.grammar is None else grammars.matcher(request.grammar),
        index=speculation.index(request.prompt) if speculation else None,
    )


class LaunchedCall(NamedTuple):
    """A call that is under way.

    Args:
        call: The rows.
        tasks: Theirs.
        drawn: What it draws, if anything.
        scores: Of a prompt's tokens, where they are wanted; see `Programs.score`.
        counts: How many of the tokens belong to each answer, where guesses decide.
    """

    call: Call
    tasks: list[Task | None]
    drawn: Drawn | None
    scores: LogProbs | None
    counts: Array | None = None

    def keep_scores(self, values: TokenLogprobs) -> None:
        """Keeps the log-probabilities of tokens of a prompt, `[T]` and `[T, n]`, for its answer."""
        task, call = self.tasks[0], self.call
        assert task is not None
        count, first = len(task.request.prompt) - 1, int(call.starts[0])
        most = max(1, task.request.num_logprobs or 0)
        values = TokenLogprobs(values[0], values[1][:, :most], values[2][:, :most])
        if task.scores is None:
            task.scores = TokenLogprobs(
                *(np.zeros((count, *one.shape[1:]), one.dtype) for one in values)
            )
        end = min(first + int(call.sizes[0]), count)
        if first < end:
            for kept, new in zip(task.scores, values, strict=True):
                kept[first:end] = new[: end - first]
        if end == count:
            drawn, *likeliest = (one.tolist() for one in task.scores)
            task.answer.prompt_logprobs = (None, *drawn)
            pairs = (tuple(zip(*one, strict=True)) for one in zip(*likeliest, strict=True))
            task.answer.prompt_likeliest = (None, *pairs)

    def logprobs(self) -> TokenLogprobs:
        """Returns log-probabilities `[rows, count]` and `[rows, count, n]`."""
        assert self.drawn is not None
        values = (np.asarray(value) for value in self.drawn.logprobs)
        return TokenLogprobs(*(value.swapaxes(0, 1) for value in values))
