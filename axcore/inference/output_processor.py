"""`OutputProcessor`: from what a call sampled to the deltas of each request. For one thread."""

import time
from collections.abc import Sequence

import numpy as np
from jaxtyping import Array

from axcore.errors import RequestError
from axcore.inference.completion import TokenDelta, TokenLogprobs
from axcore.inference.input_batch import InFlightBatch, InputBatch, RequestState
from axcore.inference.scheduler import Scheduler


class OutputProcessor:
    """Hands out sampled tokens, and ends requests: at an end token, a length, a grammar or a stop.

    Args:
        scheduler: Learns which tokens were sampled, and which sequences are finished.
        slots: The requests by slot.
        end_ids: Tokens that end a text.
        vocab_size: Number of tokens that the model knows.

    Attributes:
        requests: All unfinished requests, by number.
        num_matchers: How many of them have a grammar.
        num_sampled: Tokens handed out so far.
        num_accepted_draft_tokens: Draft tokens that the model sampled itself.
        waited_s: Time that `process` waited for the device.
    """

    def __init__(
        self, scheduler: Scheduler, slots: InputBatch, *, end_ids: Sequence[int], vocab_size: int
    ) -> None:
        self.requests: dict[int, RequestState] = {}
        self.num_matchers = 0
        self.num_sampled = 0
        self.num_accepted_draft_tokens = 0
        self.waited_s = 0.0
        self._scheduler, self._slots = scheduler, slots
        self._is_end = np.zeros(vocab_size, bool)
        # A table by token, so that ends of all rows are found by one look-up.
        self._is_end[list(end_ids)] = True

    def add(self, state: RequestState) -> None:
        """Take a request, whose tokens will be handed out."""
        self.requests[state.sequence.number] = state
        self.num_matchers += state.matcher is not None

    def finish(self, state: RequestState) -> None:
        """Free what a request holds; one that is finished already stays so."""
        # Before anything is freed: the number is read from the sequence.
        state.completion.num_cached_prompt_tokens = state.sequence.num_shared
        self._scheduler.finish(state.sequence)
        # `pop` with a default: cancelled and ended may come together, and the matcher counts once.
        if self.requests.pop(state.sequence.number, None) is not None:
            self.num_matchers -= state.matcher is not None

    def fail(self, state: RequestState, error: Exception) -> None:
        """End one request with an error; the others continue."""
        self.finish(state)
        state.completion.fail(error)

    def process(self, launched: InFlightBatch) -> None:
        """Wait for the results of a call, and hand them out."""
        if launched.scores is not None:
            self._add_scores(launched, TokenLogprobs(*map(self._read_back, launched.scores)))
        if launched.sampled is None:
            return
        batch = launched.batch
        # Rows that were filled up are behind those of the batch.
        tokens = self._read_back(launched.sampled.tokens).T[: len(batch.slots)]
        if launched.counts is not None:
            counts = self._read_back(launched.counts)[: len(batch.slots)]
            batch = self._scheduler.truncate(batch, counts)
            self.num_accepted_draft_tokens += int((counts - 1).sum())
        # A row may have lost its slot while this call ran: cancelled, preempted, or ended by the
        # call before. Its tokens are dropped; where it resumes, it samples the same ones again.
        is_current = self._scheduler.update_from_output(batch, tokens)
        # Arrays over all rows: a step costs the host the same few operations for any number of
        # rows.
        steps = np.arange(tokens.shape[1])[None, :]
        ends = self._is_end[tokens] & ~self._slots.ignores_end[batch.slots][:, None]
        # Only rows with ends of their own are looked at one by one.
        for row in np.flatnonzero(self._slots.has_stop_tokens[batch.slots]).tolist():
            state = launched.requests[row]
            if state is not None:
                ends[row] |= np.isin(tokens[row], state.request.stop_tokens)
        ends &= steps < batch.num_sampled[:, None]
        is_ended = ends.any(axis=1)
        # `argmax` finds the first end token; what was sampled after it is thrown away.
        counts = np.where(is_ended, ends.argmax(axis=1) + 1, batch.num_sampled)
        limits = self._scheduler.rows.limit[batch.slots]
        is_full = batch.first_sampled + batch.num_sampled >= limits
        # Log-probabilities stay on the device where nobody wants them: that saves a transfer.
        wants = self._slots.wants_logprobs[batch.slots].any()
        logprobs = launched.logprobs() if wants else None
        rows = np.flatnonzero(is_current & (batch.num_sampled > 0))
        self.num_sampled += int(counts[rows].sum())
        # Lists once for all rows: reading single numbers
        # out of an array costs more than all of the above.
        sampled, count_of = tokens.tolist(), counts.tolist()
        is_stopped, is_cut = is_ended.tolist(), is_full.tolist()
        for row in rows.tolist():
            state = launched.requests[row]
            assert state is not None
            reason = "stop" if is_stopped[row] else "length" if is_cut[row] else None
            own = None
            if logprobs is not None and state.request.num_logprobs is not None:
                own = TokenLogprobs(*(value[row, : count_of[row]] for value in logprobs))
            # One comparison for each row: what is written down is where the version changes.
            if state.completion.weight_version != launched.weight_version:
                first = int(batch.first_sampled[row]) - len(state.request.prompt)
                state.completion.set_weight_version(launched.weight_version, first)
            self._hand_out(state, sampled[row][: count_of[row]], reason, own)

    def _hand_out(
        self,
        state: RequestState,
        tokens: list[int],
        reason: str | None,
        logprobs: TokenLogprobs | None,
    ) -> None:
        # An end token is not part of the text, and the grammar has no word for it.
        has_end = reason == "stop"
        if state.matcher is not None and not has_end:
            try:
                state.matcher.accept(tokens)
            except RequestError as error:
                self.fail(state, error)
                return
            reason = "stop" if state.matcher.is_finished else reason
        if state.drafter is not None:
            state.drafter.push(tokens)
        # Freed before the last delta is put: whoever reads it may submit a request that needs the
        # slot, and `stats` must not count a request that its client knows to be finished.
        if reason is not None:
            self.finish(state)
        state.completion.put(TokenDelta(tokens, logprobs, reason, has_end))
        # A stop string ends the completion while its text is made, within `put`.
        if reason is None and state.completion.is_finished:
            self.finish(state)

    def _add_scores(self, launched: InFlightBatch, values: TokenLogprobs) -> None:
        """Keep log-probabilities of tokens of a prompt, `[T]` and `[T, n]`, for its request."""
        # A text that is scored is read alone, so it is the first row.
        state, batch = launched.requests[0], launched.batch
        assert state is not None
        count, first = len(state.request.prompt) - 1, int(batch.starts[0])
        num_top = max(1, state.request.num_logprobs or 0)
        values = TokenLogprobs(values[0], values[1][:, :num_top], values[2][:, :num_top])
        if state.scores is None:
            # Filled piece by piece, since a long prompt is read in several calls.
            state.scores = TokenLogprobs(
                *(np.zeros((count, *one.shape[1:]), one.dtype) for one in values)
            )
        end = min(first + int(batch.sizes[0]), count)
        if first < end:
            for kept, new in zip(state.scores, values, strict=True):
                kept[first:end] = new[: end - first]
        # The last token has nothing after it to score.
        if end == count:
            scores, *top = (one.tolist() for one in state.scores)
            state.completion.prompt_logprobs = (None, *scores)
            pairs = (tuple(zip(*one, strict=True)) for one in zip(*top, strict=True))
            state.completion.prompt_top_logprobs = (None, *pairs)

    def _read_back(self, array: Array) -> np.ndarray:
        """Return an array of the device, once it is computed."""
        start = time.perf_counter()
        values = np.asarray(array)
        self.waited_s += time.perf_counter() - start
        return values
