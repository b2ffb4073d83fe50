"""`ModelRunner`: runs what the scheduler plans, and hands out what is drawn. For one thread."""

import time
from collections import deque

import attrs
import numpy as np
from jaxtyping import Array, Bool, Int32

from axcore.errors import RequestError
from axcore.inference.adapters import NO_ADAPTER
from axcore.inference.cached_model import NUM_COLUMNS
from axcore.inference.completion import TokenDelta, TokenLogprobs
from axcore.inference.config import BatchBuckets
from axcore.inference.model_functions import SamplerOutput
from axcore.inference.output_processor import InFlightBatch, RequestState
from axcore.inference.programs import Programs
from axcore.inference.request import SamplerKind, kind_index
from axcore.inference.sampler import LogProbs, greedy_rows
from axcore.inference.schedule import ScheduledBatch, SchedulerOutput, SequenceState, SequenceTable
from axcore.inference.scheduler import Scheduler
from axcore.inference.warm_up import Stage


class InputBatch:
    """Requests by slot. What a request leaves stays until the next one has its slot.

    Args:
        rows: The scheduler's rows.
        num_slots: Slots there are.
        kinds: What programs can draw, the cheapest first.

    Attributes:
        sampling: How each slot draws.
        wants_logprobs: Whether log-probabilities are returned, by slot.
        ignores_end: Whether tokens that end a text are drawn as any other, by slot.
    """

    def __init__(self, rows: SequenceTable, num_slots: int, kinds: tuple[SamplerKind, ...]) -> None:
        self.sampling = greedy_rows(num_slots)
        self.wants_logprobs: Int32[np.ndarray, " S"] = np.zeros(num_slots, np.int32)
        self.ignores_end: Bool[np.ndarray, " S"] = np.zeros(num_slots, bool)
        self._rows, self._kinds = rows, kinds
        self._request_states: list[RequestState | None] = [None] * num_slots
        self._kind = np.zeros(num_slots, np.int32)
        self._adapter = np.full(num_slots, NO_ADAPTER, np.int32)

    def set(self, slot: int, request_state: RequestState) -> None:
        """Gives a slot to a request that starts."""
        request = request_state.request
        self._request_states[slot] = request_state
        self.sampling.set_row(slot, request.sampling, seed=request.seed)
        self._kind[slot] = kind_index(request.sampling, self._kinds)
        self.wants_logprobs[slot] = request.num_logprobs is not None
        self._adapter[slot] = request_state.adapter.number
        self.ignores_end[slot] = request.ignores_end

    def of(self, call: ScheduledBatch) -> list[RequestState | None]:
        """Returns the requests of a call's rows."""
        return [self._request_states[slot] for slot in call.slots.tolist()]

    def kind_of(self, call: ScheduledBatch, min_kind: int) -> SamplerKind:
        """Returns the first kind of program that draws all rows of a call, from `min_kind` on."""
        return self._kinds[max(min_kind, int(self._kind[call.slots].max()))]

    def array(
        self, call: ScheduledBatch, num_rows: int, num_tokens: int
    ) -> Int32[np.ndarray, "B columns"]:
        """Returns the rows of a call as one array; see `ModelInput`."""
        table, count = self._rows.page_table, len(call.slots)
        array = np.zeros((num_rows, NUM_COLUMNS + table.shape[1] + num_tokens), np.int32)
        array[count:, 0] = len(self._request_states)
        used = array[:count]
        used[:, 0], used[:, 1], used[:, 2] = call.slots, call.starts, call.sizes
        used[:, 3] = call.first_sampled - self._rows.num_prompt[call.slots]
        used[:, 4] = call.num_sampled > 0
        used[:, 5] = self.wants_logprobs[call.slots]
        used[:, 6] = self._adapter[call.slots]
        used[:, NUM_COLUMNS : NUM_COLUMNS + table.shape[1]] = table[call.slots]
        return array

    def write_tokens(self, call: ScheduledBatch, tokens: np.ndarray, ahead: int) -> None:
        """Writes the tokens that each row reads, or those some places ahead as far as known."""
        text, target = self._rows.text, self._rows.target
        for row, (slot, start, size) in enumerate(
            zip(call.slots.tolist(), call.starts.tolist(), call.sizes.tolist(), strict=True)
        ):
            end = min(start + ahead + size, int(target[slot]))
            tokens[row, : end - start - ahead] = text[slot, start + ahead : end]


class ModelRunner:
    """Runs steps; the results of one are read when the next is under way.

    Args:
        programs: What runs on the device.
        scheduler: What decides.
        buckets: Those that programs are made for.
        end_ids: Tokens that end a text.
        kinds: What programs can draw, the cheapest first.
        has_drafts: Whether draft tokens are proposed; then each step waits for the one before.
    """

    def __init__(
        self,
        programs: Programs,
        scheduler: Scheduler,
        buckets: BatchBuckets,
        *,
        end_ids: tuple[int, ...],
        kinds: tuple[SamplerKind, ...],
        has_drafts: bool = False,
    ) -> None:
        self.programs = programs
        self.scheduler = scheduler
        self.num_steps = 0
        self.num_sampled = 0
        self.num_draft_tokens = 0
        self.num_accepted_draft_tokens = 0
        self.host_seconds = 0.0
        self._buckets = buckets
        self._kinds, self._min_kind = kinds, 0
        self._is_end = np.zeros(programs.vocab_size, bool)
        self._is_end[list(end_ids)] = True
        slots = scheduler.limits.num_slots
        self._request_states: dict[int, RequestState] = {}
        self._slots = InputBatch(scheduler.rows, slots, kinds)
        self._launched: deque[InFlightBatch] = deque()
        self._waited = 0.0
        self._num_matchers = 0
        self._uses_drafts = has_drafts

    def use(self, stage: Stage) -> None:
        """Calls programs of a stage only from here on."""
        self._buckets, self._min_kind = stage.buckets, len(self._kinds) - len(stage.kinds)
        self.scheduler.limits = attrs.evolve(self.scheduler.limits, **stage.buckets.limits)

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished, or any result not read."""
        return bool(self._request_states or self._launched)

    @property
    def adapters_in_use(self) -> set[int]:
        """Numbers of the adapters of all requests that are not finished."""
        return {request_state.adapter.number for request_state in self._request_states.values()}

    def add(self, request_state: RequestState) -> None:
        """Lets a request wait for its turn."""
        self._request_states[request_state.sequence.number] = request_state
        self._num_matchers += request_state.matcher is not None
        self.scheduler.add(request_state.sequence)

    def cancel(self, request_state: RequestState) -> None:
        """Ends a request, if it is not finished."""
        self._forget(request_state)
        request_state.answer.put(TokenDelta((), None, "cancelled"))

    def give_up(self) -> list[RequestState]:
        """Returns all requests that are not finished, in the order of arrival, and has none."""
        request_states = sorted(
            self._request_states.values(), key=lambda request_state: request_state.sequence.number
        )
        self._request_states.clear()
        return request_states

    def step(self) -> None:
        """Plans and starts a step, and reads the results of the one before."""
        start, self._waited = time.perf_counter(), -self.programs.device_seconds
        if self._num_matchers or self._uses_drafts:
            self._finish_all(len(self._launched))
        num_before = len(self._launched)
        plan = self.scheduler.plan()
        if not plan.is_empty:
            self.num_steps += 1
            self._launch(plan)
        self._finish_all(num_before)
        self._waited += self.programs.device_seconds
        self.host_seconds += time.perf_counter() - start - self._waited

    def _finish_all(self, number: int) -> None:
        for _ in range(number):
            self._finish(self._launched.popleft())

    def _launch(self, plan: SchedulerOutput) -> None:
        for sequence in plan.started:
            if sequence.slot is not None:  # it may have lost it to a row before it
                self._set_row(sequence)
        if plan.started:
            self.programs.set_sampling(self._slots.sampling)
        for source, target in plan.copies:
            self.programs.copy_page(source, target)
        if plan.read is not None:
            self._read(plan.read)
        if plan.sample is not None:
            self._sample(plan.sample)

    def _set_row(self, sequence: SequenceState) -> None:
        """Writes down how the row of a job that starts draws."""
        request_state, slot = self._request_states[sequence.number], sequence.slot
        assert slot is not None
        self._slots.set(slot, request_state)
        if request_state.request.sampling.has_penalties:
            self.programs.start_history(slot, sequence.text, sequence.num_prompt)

    def _read(self, call: ScheduledBatch) -> None:
        rows = self._buckets.prefill_bucket(len(call.slots), call.length)
        array = self._slots.array(call, rows, call.length)
        width = array.shape[1] - call.length
        self._slots.write_tokens(call, array[:, width:], 0)
        request_state, scores = self._slots.of(call)[0], None
        is_scored = request_state is not None and request_state.request.prompt_logprobs
        if is_scored or self._buckets.prefills_by_score:
            following = np.zeros((1, call.length), np.int32)
            self._slots.write_tokens(call, following, 1)
            found, logits = self.programs.score_prompt(
                np.concatenate([array, following], axis=1), call.length
            )
            scores = found if is_scored else None
        else:
            logits = self.programs.prefill(array, call.length)
        sampled = None
        if call.num_sampled.any():
            sampled = self._sample_from(logits, call, array[:, :width].copy())
        if sampled is not None or scores is not None:
            self._add(call, sampled, scores)

    def _sample(self, call: ScheduledBatch) -> None:
        if self._uses_drafts and call.length > 1:
            draft_tokens = self._proposed(call)
            if any(draft_tokens):
                self._verify_draft_tokens(call, draft_tokens)
                return
            call = self.scheduler.truncate(call, np.ones_like(call.sizes))
        array = self._slots.array(call, self._buckets.decode_bucket(len(call.slots)), 0)
        if call.length == 1:
            sampled = self._sample_from(self.programs.decode(array), call, array)
        else:
            sampled = self.programs.multi_step_decode(
                array, call.length, self._slots.kind_of(call, self._min_kind)
            )
        self._add(call, sampled, None)

    def _proposed(self, call: ScheduledBatch) -> list[list[int]]:
        """Returns guesses of each row's next tokens, one fewer than it may draw."""
        request_states = self._slots.of(call)
        return [
            request_state.drafter.propose()[: size - 1]
            if request_state is not None and request_state.drafter is not None
            else []
            for request_state, size in zip(request_states, call.sizes.tolist(), strict=True)
        ]

    def _verify_draft_tokens(self, call: ScheduledBatch, draft_tokens: list[list[int]]) -> None:
        array = self._slots.array(call, self._buckets.decode_bucket(len(call.slots)), call.length)
        width, text = array.shape[1] - call.length, self.scheduler.rows.text
        for row, draft in enumerate(draft_tokens):
            array[row, 2] = 1 + len(draft)
            array[row, width] = text[call.slots[row], call.starts[row]]
            array[row, width + 1 : width + 1 + len(draft)] = draft
            self.num_draft_tokens += len(draft)
        sampled, counts = self.programs.verify_draft_tokens(
            array, call.length, self._slots.kind_of(call, self._min_kind)
        )
        self._launched.append(InFlightBatch(call, self._slots.of(call), sampled, None, counts))

    def _sample_from(self, logits: Array, call: ScheduledBatch, array: np.ndarray) -> SamplerOutput:
        allowed = self._allowed(call, len(array)) if self._num_matchers else None
        return self.programs.sample(
            logits, array, self._slots.kind_of(call, self._min_kind), allowed=allowed
        )

    def _allowed(self, call: ScheduledBatch, num_rows: int) -> np.ndarray | None:
        """Returns which tokens the rows of a call may draw, where one has a grammar."""
        allowed = None
        request_states = self._slots.of(call)
        for row in np.flatnonzero(call.num_sampled).tolist():
            request_state = request_states[row]
            if request_state is None or request_state.matcher is None:
                continue
            if allowed is None:
                allowed = np.repeat(self.programs.allowed, num_rows, axis=0)
            mask = np.zeros_like(allowed[row])
            try:
                request_state.matcher.fill(mask)
            except RequestError as error:
                self._fail(request_state, error)
                continue
            allowed[row] &= mask
        return allowed

    def _fail(self, request_state: RequestState, error: Exception) -> None:
        """Ends one request with an error."""
        self._forget(request_state)
        request_state.answer.fail(error)

    def _add(
        self, call: ScheduledBatch, sampled: SamplerOutput | None, scores: LogProbs | None
    ) -> None:
        self._launched.append(InFlightBatch(call, self._slots.of(call), sampled, scores))

    def _finish(self, launched: InFlightBatch) -> None:
        """Reads what a call drew, and hands it out."""
        call = launched.call
        if launched.scores is not None:
            launched.keep_scores(TokenLogprobs(*map(self._read_back, launched.scores)))
        if launched.sampled is None:
            return
        sampled = self._read_back(launched.sampled.tokens)
        tokens = sampled.T[: len(call.slots)]
        if launched.counts is not None:
            kept = self._read_back(launched.counts)[: len(call.slots)]
            call = self.scheduler.truncate(call, kept)
            self.num_accepted_draft_tokens += int((kept - 1).sum())
        current = self.scheduler.record(call, tokens)
        steps = np.arange(tokens.shape[1])[None, :]
        ends = self._is_end[tokens] & ~self._slots.ignores_end[call.slots][:, None]
        ends &= steps < call.num_sampled[:, None]
        is_ended = ends.any(axis=1)
        counts = np.where(is_ended, ends.argmax(axis=1) + 1, call.num_sampled)
        is_full = call.first_sampled + call.num_sampled >= self.scheduler.rows.limit[call.slots]
        wants = self._slots.wants_logprobs[call.slots].any()
        logprobs = launched.logprobs() if wants else None
        rows = np.flatnonzero(current & (call.num_sampled > 0))
        self.num_sampled += int(counts[rows].sum())
        drawn_by_row, count_of = tokens.tolist(), counts.tolist()
        is_stopped, is_cut = is_ended.tolist(), is_full.tolist()
        for row in rows.tolist():
            request_state = launched.request_states[row]
            assert request_state is not None
            reason = "stop" if is_stopped[row] else "length" if is_cut[row] else None
            self._hand_out(request_state, drawn_by_row[row][: count_of[row]], reason, logprobs, row)

    def _read_back(self, array: Array) -> np.ndarray:
        """Returns an array of the device, when it is computed."""
        start = time.perf_counter()
        values = np.asarray(array)
        self._waited += time.perf_counter() - start
        return values

    def _hand_out(
        self,
        request_state: RequestState,
        tokens: list[int],
        reason: str | None,
        logprobs: TokenLogprobs | None,
        row: int,
    ) -> None:
        own, has_end = None, reason == "stop"
        if logprobs is not None and request_state.request.num_logprobs is not None:
            own = TokenLogprobs(*(value[row, : len(tokens)] for value in logprobs))
        if request_state.matcher is not None and not has_end:
            try:
                request_state.matcher.accept(tokens)
            except RequestError as error:
                self._fail(request_state, error)
                return
            reason = "stop" if request_state.matcher.is_finished else reason
        if request_state.drafter is not None:
            request_state.drafter.push(tokens)
        if reason is not None:
            self._forget(request_state)
        request_state.answer.put(TokenDelta(tokens, own, reason, has_end))
        if reason is None and request_state.answer.is_finished:
            self._forget(request_state)

    def _forget(self, request_state: RequestState) -> None:
        request_state.answer.num_cached_prompt_tokens = request_state.sequence.num_shared
        self.scheduler.finish(request_state.sequence)
        if self._request_states.pop(request_state.sequence.number, None) is not None:
            self._num_matchers -= request_state.matcher is not None
