"""`Task`: a request at work, with its answer and its place in the schedule."""

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from axcore.errors import EngineError
from axcore.inference.answer import Answer, TokenLogprobs
from axcore.inference.engine_adapters import WITHOUT_ADAPTER, NumberedAdapter
from axcore.inference.grammar import GrammarCompiler, GrammarMatcher
from axcore.inference.request import Request
from axcore.inference.speculation import DraftModel, Guesses, NGramLookup
from axcore.inference.step_plan import Job


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
