"""`InputBatch`: the requests in progress by slot, and the arrays that calls get of them.

Letters of shapes: S slots, B rows of a call, T tokens, n likeliest tokens.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
import numpy as np
from jaxtyping import Array, Bool, Int32

from axcore.errors import EngineError
from axcore.inference.adapters import NO_ADAPTER, WITHOUT_ADAPTER, NumberedAdapter
from axcore.inference.cached_model import NUM_COLUMNS
from axcore.inference.completion import CompletionStream, TokenLogprobs
from axcore.inference.grammar import DelayedEnd, GrammarCompiler, GrammarMatcher
from axcore.inference.model_functions import SamplerOutput
from axcore.inference.request import EncoderInput, Request, SamplerKind, kind_index
from axcore.inference.sampler import LogProbs, WantedLogprobs, greedy_rows
from axcore.inference.schedule import ScheduledBatch, SequenceState, SequenceTable
from axcore.inference.speculation import Drafter, DraftModel, NGramLookup


@attrs.define(eq=False)
class RequestState:
    """A request in progress.

    Args:
        completion: Where its tokens go.
        sequence: Its place in the schedule.
        matcher: Which tokens may follow, where not all may.
        scores: Log-probabilities of the prompt's tokens after the first, once some are known; see
            `Programs.score_prompt`.
        drafter: Proposes its next tokens, with speculative decoding.
        adapter: The adapter that it is answered with.
        inputs: Its inputs, such as pictures, by the numbers that its text has them by.
    """

    completion: CompletionStream
    sequence: SequenceState
    matcher: GrammarMatcher | DelayedEnd | None = None
    scores: TokenLogprobs | None = None
    drafter: Drafter | None = None
    adapter: NumberedAdapter = WITHOUT_ADAPTER
    inputs: dict[int, EncoderInput] = attrs.field(factory=dict)

    @property
    def request(self) -> Request:
        """The request itself."""
        return self.completion.request


OnFailure = Callable[[EngineError, Sequence[RequestState]], None]
"""Called in the engine thread after a step failed, with the reason and all unfinished requests in
the order of arrival. It ends them, or has another engine take them over."""


def fail_all(error: EngineError, states: Sequence[RequestState]) -> None:
    """End requests with an error."""
    for state in states:
        state.completion.fail(error)


def new_request_state(
    completion: CompletionStream,
    number: int,
    *,
    grammars: GrammarCompiler,
    speculation: NGramLookup | DraftModel | None,
    end_ids: Sequence[int],
) -> RequestState:
    """Return the state of a request that no step has begun.

    Args:
        completion: Where its tokens go.
        number: The number of the request, in the order of arrival.
        grammars: Compiles its grammar, if it has one.
        speculation: Where its draft tokens come from.
        end_ids: Tokens that end any text.

    Raises:
        RequestError: Its grammar is invalid.
    """
    request = completion.request
    size = len(request.prompt)
    sequence = SequenceState(
        number=number,
        priority=request.priority,
        text=np.asarray(request.prompt, np.int32),
        num_prompt=size,
        limit=size + request.max_tokens,
        one_by_one=request.grammar is not None or request.min_tokens > 0,
        reads_alone=request.prompt_logprobs,
    )
    inner = None if request.grammar is None else grammars.matcher(request.grammar)
    matcher: GrammarMatcher | DelayedEnd | None = inner
    if request.min_tokens:
        ends = (*request.stop_tokens, *(() if request.ignores_end else end_ids))
        matcher = DelayedEnd(inner, ends, request.min_tokens)
    return RequestState(
        completion,
        sequence,
        matcher=matcher,
        drafter=speculation.drafter(request.prompt) if speculation else None,
    )


class InputBatch:
    """Requests by slot. The values of a finished request stay until the next one gets its slot.

    Args:
        sequences: The scheduler's table.
        num_slots: Number of slots.
        kinds: What programs can sample, the cheapest first.

    Attributes:
        sampling: The sampling settings of each slot.
        wants_logprobs: Which log-probabilities are returned, by slot; see `WantedLogprobs`.
        ignores_end: Whether end tokens are sampled as any other token, by slot.
        has_stop_tokens: Whether the request has end tokens of its own, by slot.
    """

    def __init__(
        self, sequences: SequenceTable, num_slots: int, kinds: tuple[SamplerKind, ...]
    ) -> None:
        self.sampling = greedy_rows(num_slots)
        self.wants_logprobs: Int32[np.ndarray, " S"] = np.zeros(num_slots, np.int32)
        self.ignores_end: Bool[np.ndarray, " S"] = np.zeros(num_slots, bool)
        self.has_stop_tokens: Bool[np.ndarray, " S"] = np.zeros(num_slots, bool)
        self._sequences, self._kinds = sequences, kinds
        self._requests: list[RequestState | None] = [None] * num_slots
        self._kind = np.zeros(num_slots, np.int32)
        self._adapter = np.full(num_slots, NO_ADAPTER, np.int32)

    def set(self, slot: int, state: RequestState) -> None:
        """Give a slot to a request that starts."""
        request = state.request
        self._requests[slot] = state
        self.sampling.set_row(slot, request.sampling, seed=request.seed)
        self._kind[slot] = kind_index(request.sampling, self._kinds)
        self.wants_logprobs[slot] = _wanted_logprobs(request)
        self._adapter[slot] = state.adapter.number
        self.ignores_end[slot] = request.ignores_end
        self.has_stop_tokens[slot] = bool(request.stop_tokens)

    def of(self, batch: ScheduledBatch) -> list[RequestState | None]:
        """Return the requests of a batch's rows."""
        return [self._requests[slot] for slot in batch.slots.tolist()]

    def kind_of(self, batch: ScheduledBatch, min_kind: int) -> SamplerKind:
        """Return the first kind of program that samples all rows of a batch, from `min_kind` on."""
        return self._kinds[max(min_kind, int(self._kind[batch.slots].max()))]

    def array(
        self, batch: ScheduledBatch, num_rows: int, num_tokens: int
    ) -> Int32[np.ndarray, "B columns"]:
        """Return the rows of a batch as one array; see `ModelInput`."""
        table, count = self._sequences.page_table, len(batch.slots)
        # Zeros are harmless: rows that are filled up read nothing, and their slot is out of range.
        array = np.zeros((num_rows, NUM_COLUMNS + table.shape[1] + num_tokens), np.int32)
        # A slot out of range: writes of such rows are dropped on the device.
        array[count:, 0] = len(self._requests)
        used = array[:count]
        used[:, 0], used[:, 1], used[:, 2] = batch.slots, batch.starts, batch.sizes
        # Place in the answer, not in the text: random keys count from the answer's first token.
        used[:, 3] = batch.first_sampled - self._sequences.num_prompt[batch.slots]
        used[:, 4] = batch.num_sampled > 0
        used[:, 5] = self.wants_logprobs[batch.slots]
        used[:, 6] = self._adapter[batch.slots]
        used[:, NUM_COLUMNS : NUM_COLUMNS + table.shape[1]] = table[batch.slots]
        return array

    def write_tokens(self, batch: ScheduledBatch, tokens: np.ndarray, ahead: int) -> None:
        """Write the tokens that each row reads, or those some places ahead as far as known."""
        text, target = self._sequences.text, self._sequences.target
        for row, (slot, start, size) in enumerate(
            zip(batch.slots.tolist(), batch.starts.tolist(), batch.sizes.tolist(), strict=True)
        ):
            # The token after the last known one is not there
            # yet, so its place stays 0 and is not used.
            end = min(start + ahead + size, int(target[slot]))
            tokens[row, : end - start - ahead] = text[slot, start + ahead : end]


def _wanted_logprobs(request: Request) -> WantedLogprobs:
    if request.num_logprobs is None:
        return WantedLogprobs(0)
    wanted = WantedLogprobs.SAMPLED
    if request.num_logprobs:
        wanted |= WantedLogprobs.TOP
    if request.logprobs_mode == "processed_logprobs":
        wanted |= WantedLogprobs.PROCESSED
    return wanted


class InFlightBatch(NamedTuple):
    """A call that was started, with results that the device may still compute.

    Args:
        batch: Its rows.
        requests: Their requests. They are kept here, as a slot may have another request when the
            results are read.
        sampled: The sampled tokens, if any.
        scores: Log-probabilities of a prompt's tokens, where they are wanted.
        counts: How many tokens of each row were accepted, with draft tokens.
        weight_version: Version of the weights that the call was started with.
    """

    batch: ScheduledBatch
    requests: list[RequestState | None]
    sampled: SamplerOutput | None
    scores: LogProbs | None
    counts: Array | None = None
    weight_version: int = 0

    def logprobs(self) -> TokenLogprobs:
        """Return log-probabilities `[B, count]` and `[B, count, n]`."""
        assert self.sampled is not None
        values = (np.asarray(value) for value in self.sampled.logprobs)
        # Of the scan the first axis is the step; requests want rows.
        return TokenLogprobs(*(value.swapaxes(0, 1) for value in values))
