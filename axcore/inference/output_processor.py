"""`RequestState`: a request at work, with its answer and its place in the schedule."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
import numpy as np
from jaxtyping import Array

from axcore.errors import EngineError
from axcore.inference.adapters import WITHOUT_ADAPTER, NumberedAdapter
from axcore.inference.completion import CompletionStream, TokenLogprobs
from axcore.inference.grammar import GrammarCompiler, GrammarMatcher
from axcore.inference.model_functions import SamplerOutput
from axcore.inference.request import Request
from axcore.inference.sampler import LogProbs
from axcore.inference.schedule import ScheduledBatch, SequenceState
from axcore.inference.speculation import Drafter, DraftModel, NGramLookup


@attrs.define(eq=False)
class RequestState:
    """A request at work.

    Args:
        answer: Where its tokens go.
        sequence: Its place in the schedule.
        matcher: Where it is in its grammar, if it has one.
        scores: Log-probabilities of the prompt's tokens after the first, once some are known; see
            `Programs.score_prompt`.
        drafter: Proposes its next tokens, with speculative decoding.
        adapter: The adapter that it is answered with.
    """

    answer: CompletionStream
    sequence: SequenceState
    matcher: GrammarMatcher | None = None
    scores: TokenLogprobs | None = None
    drafter: Drafter | None = None
    adapter: NumberedAdapter = WITHOUT_ADAPTER

    @property
    def request(self) -> Request:
        """What is asked."""
        return self.answer.request


OnFailure = Callable[[EngineError, Sequence[RequestState]], None]
"""Is called in the thread of an engine of which a step failed, with why, and all requests that are
not answered, in the order of arrival. It ends them, or has another engine take them over."""


def fail_all(error: EngineError, request_states: Sequence[RequestState]) -> None:
    """Ends requests with an error."""
    for request_state in request_states:
        request_state.answer.fail(error)


def new_request_state(
    answer: CompletionStream,
    number: int,
    *,
    grammars: GrammarCompiler,
    speculation: NGramLookup | DraftModel | None,
) -> RequestState:
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
    sequence = SequenceState(
        number=number,
        priority=request.priority,
        text=np.asarray(request.prompt, np.int32),
        num_prompt=size,
        limit=size + request.max_tokens,
        one_by_one=request.grammar is not None,
        reads_alone=request.prompt_logprobs,
    )
    return RequestState(
        answer,
        sequence,
        matcher=None if request.grammar is None else grammars.matcher(request.grammar),
        drafter=speculation.drafter(request.prompt) if speculation else None,
    )


class InFlightBatch(NamedTuple):
    """A call that is under way.

    Args:
        call: The rows.
        request_states: Theirs.
        sampled: What it draws, if anything.
        scores: Of a prompt's tokens, where they are wanted; see `Programs.score_prompt`.
        counts: How many of the tokens belong to each answer, where guesses decide.
    """

    call: ScheduledBatch
    request_states: list[RequestState | None]
    sampled: SamplerOutput | None
    scores: LogProbs | None
    counts: Array | None = None

    def keep_scores(self, values: TokenLogprobs) -> None:
        """Keeps the log-probabilities of tokens of a prompt, `[T]` and `[T, n]`, for its answer."""
        request_state, call = self.request_states[0], self.call
        assert request_state is not None
        count, first = len(request_state.request.prompt) - 1, int(call.starts[0])
        most = max(1, request_state.request.num_logprobs or 0)
        values = TokenLogprobs(values[0], values[1][:, :most], values[2][:, :most])
        if request_state.scores is None:
            request_state.scores = TokenLogprobs(
                *(np.zeros((count, *one.shape[1:]), one.dtype) for one in values)
            )
        end = min(first + int(call.sizes[0]), count)
        if first < end:
            for kept, new in zip(request_state.scores, values, strict=True):
                kept[first:end] = new[: end - first]
        if end == count:
            sampled, *top_tokens = (one.tolist() for one in request_state.scores)
            request_state.answer.prompt_logprobs = (None, *sampled)
            pairs = (tuple(zip(*one, strict=True)) for one in zip(*top_tokens, strict=True))
            request_state.answer.prompt_top_logprobs = (None, *pairs)

    def logprobs(self) -> TokenLogprobs:
        """Returns log-probabilities `[rows, count]` and `[rows, count, n]`."""
        assert self.sampled is not None
        values = (np.asarray(value) for value in self.sampled.logprobs)
        return TokenLogprobs(*(value.swapaxes(0, 1) for value in values))
