"""`ModelRunner`: runs the scheduler's steps on the device. For one thread.

A step plans, starts its calls, and only then reads the results of the step before: so the host
plans and hands out tokens while the device computes. Two things need each token before the next
step is planned, and so have nothing in flight: grammars and draft tokens.
"""

import time
from collections import deque

import attrs
import numpy as np
from jaxtyping import Array

from axcore.errors import RequestError
from axcore.inference.completion import TokenDelta
from axcore.inference.config import BatchBuckets
from axcore.inference.encoder_cache import EncoderCache
from axcore.inference.input_batch import InFlightBatch, InputBatch, RequestState
from axcore.inference.model_functions import SamplerOutput
from axcore.inference.output_processor import OutputProcessor
from axcore.inference.programs import Programs
from axcore.inference.request import SamplerKind
from axcore.inference.sampler import LogProbs
from axcore.inference.schedule import ScheduledBatch, SchedulerOutput, SequenceState
from axcore.inference.scheduler import Scheduler
from axcore.inference.warm_up import Stage


class ModelRunner:
    """Runs steps; the results of one are read when the next has started.

    Args:
        programs: The compiled programs.
        scheduler: Decides what a step runs.
        buckets: Batch sizes and lengths that programs are compiled for.
        end_ids: Tokens that end a text.
        kinds: What programs can sample, the cheapest first.
        has_drafts: Whether draft tokens are proposed; then each step waits for the one before.

    Attributes:
        output: Hands out what is sampled.
        encoder_cache: Which inputs the device has; None where the model reads text alone.
        num_steps: Steps run so far.
        num_draft_tokens: Draft tokens proposed so far.
        weight_version: Version of the weights that calls are started with.
        host_seconds: Time of all steps that was the host's own, not spent waiting for the device.
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
        self.num_draft_tokens = 0
        self.weight_version = 0
        self.host_seconds = 0.0
        self._buckets = buckets
        self._kinds, self._min_kind = kinds, 0
        self._slots = InputBatch(scheduler.rows, scheduler.limits.num_slots, kinds)
        self.output = OutputProcessor(
            scheduler, self._slots, end_ids=end_ids, vocab_size=programs.vocab_size
        )
        spec = programs.encoder
        self.encoder_cache = None if spec is None else EncoderCache(spec)
        self._in_flight: deque[InFlightBatch] = deque()
        self._kept_prompts: set[bytes] = set()
        self._has_drafts = has_drafts

    def use(self, stage: Stage) -> None:
        """Call only programs of a stage from here on."""
        self._buckets, self._min_kind = stage.buckets, len(self._kinds) - len(stage.kinds)
        # The scheduler plans by the sizes that programs exist for.
        self.scheduler.limits = attrs.evolve(self.scheduler.limits, **stage.buckets.limits)

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished, or a result was not read."""
        return bool(self.output.requests or self._in_flight)

    @property
    def adapters_in_use(self) -> set[int]:
        """Numbers of the adapters of all unfinished requests."""
        return {state.adapter.number for state in self.output.requests.values()}

    def add(self, state: RequestState) -> None:
        """Let a request wait for its turn."""
        self.output.add(state)
        self.scheduler.add(state.sequence)

    def cancel(self, state: RequestState) -> None:
        """End a request, if it is not finished."""
        self.output.finish(state)
        state.completion.put(TokenDelta((), None, "cancelled"))

    def give_up(self) -> list[RequestState]:
        """Return all unfinished requests in the order of arrival, and forget them."""
        requests = self.output.requests
        states = sorted(requests.values(), key=lambda state: state.sequence.number)
        requests.clear()
        return states

    def step(self) -> None:
        """Plan and start a step, and hand out the results of the one before."""
        start, waited = time.perf_counter(), -self._device_seconds
        # A grammar needs the last token to know which may follow, and drafts need it to be
        # proposed. Otherwise the device computes the next step while the host reads this one.
        if self.output.num_matchers or self._has_drafts:
            self._process(len(self._in_flight))
        # Counted before the launch: the results of this step are read in the next.
        num_before = len(self._in_flight)
        plan = self.scheduler.schedule()
        if not plan.is_empty:
            self.num_steps += 1
            self._launch(plan)
        # Logits of prompts that nobody waits for any more, or that gave way to others.
        for prompt in [*self._kept_prompts]:
            if prompt not in self.scheduler.pages.prompts:
                self._kept_prompts.remove(prompt)
                self.programs.forget_logits(prompt)
        # After the launch, while the device is busy with it.
        self._process(num_before)
        # Waiting for the device is not the host's own time.
        waited += self._device_seconds
        self.host_seconds += time.perf_counter() - start - waited

    @property
    def _device_seconds(self) -> float:
        return self.programs.device_seconds + self.output.waited_s

    def _process(self, number: int) -> None:
        for _ in range(number):
            self.output.process(self._in_flight.popleft())

    def _launch(self, plan: SchedulerOutput) -> None:
        for sequence in plan.started:
            # A row may lose its slot in the step that gave it: to one before it that needs pages.
            if sequence.slot is not None:
                self._start_row(sequence)
        if plan.started:
            # Once for all that started: it is a transfer of the settings of all slots.
            self.programs.set_sampling(self._slots.sampling)
        # Pages are copied before anything writes on them: the calls below may write on the copy,
        # and another row may already own the page that it was copied from.
        for source, target in plan.copies:
            self.programs.copy_page(source, target)
        # Before decoding: a row that is read to its end samples its first token in
        # this step, and the order of calls is the order of the caches' changes.
        if plan.prefill is not None:
            self._prefill(plan.prefill)
            for row, prompt in plan.prefilled:
                self.programs.keep_logits(row, prompt)
                self._kept_prompts.add(prompt)
        for fork in plan.forks:
            # One by one, by the program that samples for a prompt that is read alone: so
            # the bits of a first token, too, do not depend on how many share the prompt.
            array = self._slots.array(fork.batch, 1, 0)
            self._add(fork.batch, self._sample(fork.batch, array, prompt=fork.prompt), None)
        if plan.decode is not None:
            self._decode(plan.decode)

    def _start_row(self, sequence: SequenceState) -> None:
        """Set the sampling settings of the slot of a sequence that starts."""
        state, slot = self.output.requests[sequence.number], sequence.slot
        assert slot is not None
        self._slots.set(slot, state)
        if state.request.sampling.has_penalties:
            # Counting the prompt's tokens costs a program's call, which only penalties need.
            self.programs.start_history(slot, sequence.text, sequence.num_prompt)

    def _prefill(self, batch: ScheduledBatch) -> None:
        """Read tokens of prompts; rows that are read to their end sample their first token."""
        rows = self._buckets.prefill_bucket(len(batch.slots), batch.length)
        array = self._slots.array(batch, rows, batch.length)
        width = array.shape[1] - batch.length
        self._slots.write_tokens(batch, array[:, width:], 0)
        if self.encoder_cache is not None:
            array[:, width:] = self._encoded(batch, array[:, width:])
        state, scores = self._slots.of(batch)[0], None
        is_scored = state is not None and state.request.prompt_logprobs
        # In warm-up's first stages there is one program for reading, the one that scores as well.
        if is_scored or self._buckets.prefills_by_score:
            following = np.zeros((1, batch.length), np.int32)
            self._slots.write_tokens(batch, following, 1)
            found = self.programs.score_prompt(
                np.concatenate([array, following], axis=1), batch.length
            )
            scores = found if is_scored else None
        else:
            self.programs.prefill(array, batch.length)
        sampled = None
        if batch.num_sampled.any():
            # A copy of the columns without the tokens: `array`
            # may still be read by the call that was just started.
            sampled = self._sample(batch, array[:, :width].copy())
        if sampled is not None or scores is not None:
            self._add(batch, sampled, scores)

    def _encoded(self, batch: ScheduledBatch, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens of a call, once the device has the inputs that they are of."""
        assert self.encoder_cache is not None
        states = self._slots.of(batch)
        inputs = [{} if state is None else state.inputs for state in states]
        found, new = self.encoder_cache.placed(tokens, inputs)
        for one, slot in new:
            # Behind all calls that read what was in the slot: the device runs them in order.
            self.programs.encode(one.value, slot)
        return found

    def _decode(self, batch: ScheduledBatch) -> None:
        """Sample the next tokens of rows: one, several in one call, or as many as are accepted."""
        if self._has_drafts and batch.length > 1:
            draft_tokens = self._propose(batch)
            if any(draft_tokens):
                self._verify_draft_tokens(batch, draft_tokens)
                return
            # Nothing to verify: one token of each row, though the scheduler planned more.
            batch = self.scheduler.truncate(batch, np.ones_like(batch.sizes))
        array = self._slots.array(batch, self._buckets.decode_bucket(len(batch.slots)), 0)
        if batch.length == 1:
            # Two programs, as the host may write a mask between them: see `_allowed`.
            self.programs.decode(array)
            sampled = self._sample(batch, array)
        else:
            sampled = self.programs.multi_step_decode(
                array, batch.length, self._slots.kind_of(batch, self._min_kind)
            )
        self._add(batch, sampled, None)

    def _propose(self, batch: ScheduledBatch) -> list[list[int]]:
        """Return draft tokens of each row, one fewer than it may sample: the model adds one."""
        # The model's own token after the accepted ones takes the last place.
        return [
            state.drafter.propose()[: size - 1]
            if state is not None and state.drafter is not None
            else []
            for state, size in zip(self._slots.of(batch), batch.sizes.tolist(), strict=True)
        ]

    def _verify_draft_tokens(self, batch: ScheduledBatch, draft_tokens: list[list[int]]) -> None:
        rows = self._buckets.decode_bucket(len(batch.slots))
        array = self._slots.array(batch, rows, batch.length)
        width, text = array.shape[1] - batch.length, self.scheduler.rows.text
        for row, draft in enumerate(draft_tokens):
            array[row, 2] = 1 + len(draft)
            array[row, width] = text[batch.slots[row], batch.starts[row]]
            # Rows with fewer draft tokens than the call has room for; the size in column 2 says so.
            array[row, width + 1 : width + 1 + len(draft)] = draft
            self.num_draft_tokens += len(draft)
        sampled, counts = self.programs.verify_draft_tokens(
            array, batch.length, self._slots.kind_of(batch, self._min_kind)
        )
        self._add(batch, sampled, None, counts)

    def _sample(
        self, batch: ScheduledBatch, array: np.ndarray, *, prompt: bytes | None = None
    ) -> SamplerOutput:
        # A mask of its own for each row is a transfer;
        # without grammars all share the one on the device.
        allowed = self._allowed(batch, len(array)) if self.output.num_matchers else None
        kind = self._slots.kind_of(batch, self._min_kind)
        return self.programs.sample(array, kind, allowed=allowed, prompt=prompt)

    def _allowed(self, batch: ScheduledBatch, num_rows: int) -> np.ndarray | None:
        """Return which tokens the rows of a call may sample, where one has a grammar.

        The masks are computed while the device runs the model: only sampling waits for them.
        """
        allowed = None
        states = self._slots.of(batch)
        for row in np.flatnonzero(batch.num_sampled).tolist():
            state = states[row]
            if state is None or state.matcher is None:
                continue
            if allowed is None:
                allowed = np.repeat(self.programs.allowed, num_rows, axis=0)
            mask = np.zeros_like(allowed[row])
            try:
                state.matcher.fill(mask)
            # Only this request fails, and its row still runs: the shapes of the call are fixed.
            except RequestError as error:
                self.output.fail(state, error)
                continue
            # And with what text may have at all: a grammar knows nothing of padding tokens.
            allowed[row] &= mask
        return allowed

    def _add(
        self,
        batch: ScheduledBatch,
        sampled: SamplerOutput | None,
        scores: LogProbs | None,
        counts: Array | None = None,
    ) -> None:
        # With the version of now: weights may be replaced before the results are read.
        self._in_flight.append(
            InFlightBatch(
                batch, self._slots.of(batch), sampled, scores, counts, self.weight_version
            )
        )
