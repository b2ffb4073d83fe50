"""`Scheduler`: which rows run in a step, and which pages of the KV cache they have.

A step prefills pieces of some prompts (chunked prefill), as many as `SchedulerConfig` allows, and
decodes tokens of all other rows. Rows are in the order of their requests, where a request of the
next priority counts as one that came `PATIENCE` requests later. Pages are given out in this order;
where none is free, the last row is preempted: it loses its pages, waits, and is read again. So the
first row always gets on, and with it every row in its turn.

Plain values, without jax: a step is planned while the device runs the one before.
"""

import heapq
from collections.abc import Iterable

import attrs
import numpy as np

from axcore.inference.block_manager import BlockManager
from axcore.inference.schedule import (
    Fork,
    ScheduledBatch,
    SchedulerConfig,
    SchedulerOutput,
    SequenceState,
    SequenceTable,
)


class Scheduler:
    """Plans steps; not for several threads.

    Args:
        limits: What bounds the schedule.
    """

    def __init__(self, limits: SchedulerConfig) -> None:
        self.limits = limits
        self.rows = SequenceTable(limits.num_slots, limits.max_length, limits.page_size)
        self.pages = BlockManager(limits, self.rows)
        self.pool = self.pages.pool
        self.sequences = self.pages.sequences
        self.num_preemptions = 0
        # Descending, so that `pop` takes the lowest: slots
        # in use stay at the beginning of the arrays.
        self._free_slots = list(range(limits.num_slots - 1, -1, -1))
        # The number breaks ties of the order, as sequences themselves cannot be compared.
        self._waiting: list[tuple[int, int, SequenceState]] = []
        self._num_waiting = 0
        self._was_short = False
        self._num_held = 0  # calls of prompts since rows decoded, where calls have fixed shapes

    @property
    def num_waiting(self) -> int:
        """Number of sequences without a slot."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Number of sequences with a slot."""
        return self.limits.num_slots - len(self._free_slots)

    def add(self, sequence: SequenceState) -> None:
        """Queue a sequence."""
        self.pages.wait_for_prompt(sequence)
        self._wait(sequence)

    def finish(self, sequence: SequenceState) -> None:
        """Remove a sequence, whether it waits, runs or is finished already."""
        # It may be cancelled by its client and end by itself in the same step.
        if sequence.is_over:
            return
        sequence.is_over = True
        self.pages.prompts.leave(sequence)
        if sequence.slot is None:
            # It stays in the heap, from which only the
            # first can be taken cheaply; `_admit` skips it.
            self._num_waiting -= 1
        else:
            self._leave(sequence)

    def schedule(self) -> SchedulerOutput:
        """Return the next step.

        Its calls count as done from here on, so that the step after it can be planned before the
        device has finished them.
        """
        # A new list: the one of the step before may still be read by who runs it.
        self.pages.copies = []
        # Admitted before anything is chosen, so that a
        # request's first tokens are in this very step.
        started = tuple(self._admit())
        reading, length = self._choose_reading()
        decoding, count = self._choose_decoding(is_reading=len(reading) > 0)
        rows = self.rows
        slots = np.concatenate([reading, decoding])
        sizes = np.concatenate(
            [
                np.minimum(rows.target[reading] - rows.num_cached[reading], length),
                # One less than the limit: the last token of an answer is sampled and never read.
                np.minimum(rows.limit[decoding] - 1 - rows.num_cached[decoding], count),
            ]
        )
        is_read = np.arange(len(slots)) < len(reading)
        if self.limits.whole_input:
            sizes[is_read] = self._before_inputs(reading, sizes[is_read])
            # A row whose next input does not fit into this call waits for one of its own.
            kept = ~is_read | (sizes > 0)
            slots, sizes, is_read = slots[kept], sizes[kept], is_read[kept]
        # Reading rows first, but pages go by the order of requests where they are short.
        got = self._allocate(slots, sizes)
        read = self._call(slots[got & is_read], sizes[got & is_read], length, is_read=True)
        sample = self._call(slots[got & ~is_read], sizes[got & ~is_read], count, is_read=False)
        # Counted as done although they are not: calls run in the order in which they are
        # planned, so a row that finds these pages reads them after they were filled.
        prefilled: tuple[tuple[int, bytes], ...] = ()
        if read is not None:
            self.pages.cache_prefilled(read)
            prefilled = tuple(self._prefilled_prompts(read))
        # After the prompts of this step, which some of them wait for.
        forks = tuple(self._forks())
        return SchedulerOutput(tuple(self.pages.copies), read, prefilled, forks, sample, started)

    def update_from_output(self, call: ScheduledBatch, sampled: np.ndarray) -> np.ndarray:
        """Write down the tokens that a call sampled, `[rows, sampled at most]`.

        Returns:
            Which rows they count for, `[rows]`: those whose sequences still have their slot.
        """
        rows, slots = self.rows, call.slots
        # A slot may have been left and given to another request while the
        # call ran; its generation then differs, and the result is dropped.
        current: np.ndarray = rows.generation[slots] == call.generations
        steps = np.arange(sampled.shape[1])
        counts = current[:, None] & (steps < call.num_sampled[:, None])
        row, step = np.nonzero(counts)
        # Written by index arrays: a loop over rows in
        # Python would cost more than a small model's step.
        rows.text[slots[row], call.first_sampled[row] + step] = sampled[row, step]
        samples = current & (call.num_sampled > 0)
        slots = slots[samples]
        rows.num_known[slots] = call.first_sampled[samples] + call.num_sampled[samples]
        if self.limits.enable_prefix_caching:
            self.pages.cache_decoded(slots)
        return current

    def truncate(self, call: ScheduledBatch, counts: np.ndarray) -> ScheduledBatch:
        """Return a call that samples fewer tokens than was planned, as where draft tokens are
        rejected.

        No step may have been planned since: it would begin where this one was meant to end. The
        rows keep the pages that they got; what rejected tokens left there is overwritten.

        Args:
            call: As it was planned.
            counts: Tokens that each row samples, `[rows]`.
        """
        current = self.rows.generation[call.slots] == call.generations
        ends = call.starts + counts
        self.rows.num_cached[call.slots[current]] = ends[current]
        return attrs.evolve(call, sizes=counts, num_sampled=counts, length=int(counts.max()))

    def reset_prefix_cache(self) -> None:
        """Clear the prefix cache: new weights compute other keys and values."""
        self.pages.prompts.clear()
        # What they have read is of the old weights, so nobody shares it who begins later.
        for slot in self.rows.reading().tolist():
            sequence = self.sequences[slot]
            assert sequence is not None
            if self.rows.num_cached[slot]:
                self.pages.prompts.leave(sequence)
        self.pool.clear_cache()

    def _wait(self, sequence: SequenceState) -> None:
        # The same order as before its preemption, so it comes back before all that came later.
        heapq.heappush(self._waiting, (sequence.order, sequence.number, sequence))
        self._num_waiting += 1

    def _admit(self) -> Iterable[SequenceState]:
        """Yield waiting sequences that get a slot, in order; none overtakes another."""
        # After a step that lacked pages nobody is admitted: the next rows would be preempted at
        # once.
        while self._waiting and not self._was_short:
            sequence = self._waiting[0][2]
            # Cancelled while it waited.
            if sequence.is_over:
                heapq.heappop(self._waiting)
            elif self._fits(sequence):
                heapq.heappop(self._waiting)
                self._start(sequence)
                yield sequence
            # Calls of fixed shapes never preempt: what a row
            # is computed with would depend on the others.
            elif self.limits.fixed_calls or not self._fits_after_preemption(sequence):
                return
            else:
                self._preempt_last()

    def _fits(self, sequence: SequenceState) -> bool:
        """Return whether there is a slot, and pages to read all of a sequence's text."""
        if not self._free_slots:
            return False
        # Pages for the full text at once: with fewer it would
        # be preempted half-way, and what it read thrown away.
        while self.pages.num_pages_needed(sequence, self.pool.holders) > self.pool.num_free:
            # Prompts that wait to be shared give way to whoever runs now.
            if not self.pages.prompts.drop_oldest():
                return False
        return True

    def _fits_after_preemption(self, sequence: SequenceState) -> bool:
        """Return whether a sequence would fit if all rows after it were preempted."""
        later = self._later(sequence.order)
        # Without it the next line would copy the holders of
        # all pages for every step in which somebody waits.
        if not len(later):
            return False
        holders = self.pages.holders_without(later)
        return self.pages.num_pages_needed(sequence, holders) <= int(np.count_nonzero(holders == 0))

    def _start(self, sequence: SequenceState) -> None:
        rows, slot = self.rows, self._free_slots.pop()
        self._num_waiting -= 1
        self.sequences[slot], sequence.slot = sequence, slot
        rows.is_running[slot] = True
        # Any change marks results of calls that are still running as stale.
        rows.generation[slot] += 1
        rows.order[slot] = sequence.order
        rows.num_cached[slot] = rows.num_pages[slot] = 0
        rows.target[slot] = rows.num_known[slot] = len(sequence.text)
        rows.limit[slot], rows.num_prompt[slot] = sequence.limit, sequence.num_prompt
        rows.one_by_one[slot] = sequence.one_by_one
        # Text that was sampled before a preemption has full pages, too.
        self.pages.extend_digests(sequence, sequence.text)
        rows.num_digests[slot] = len(sequence.digests)
        rows.text[slot, : len(sequence.text)] = sequence.text
        self.pages.share_prefix(sequence)

    def _leave(self, sequence: SequenceState) -> None:
        """Free the slot and the pages of a sequence."""
        slot = sequence.slot
        assert slot is not None
        self.rows.is_running[slot] = False
        # A call may still run with this slot; its results are then of an older generation.
        self.rows.generation[slot] += 1
        self.sequences[slot], sequence.slot = None, None
        self._free_slots.append(slot)
        self.pool.release(sequence.pages)
        sequence.pages = []

    def _later(self, order: int) -> np.ndarray:
        """Return the slots whose rows come after a place in the order."""
        return np.flatnonzero(self.rows.is_running & (self.rows.order > order))

    def _preempt_last(self) -> None:
        """Preempt the last row: it loses slot and pages, waits, and is read again."""
        running = np.flatnonzero(self.rows.is_running)
        slot = int(running[np.argmax(self.rows.order[running])])
        sequence = self.sequences[slot]
        assert sequence is not None
        # A copy, since the slot's row is another's soon. Only what is known: a token that
        # is still on the device is sampled again, with the same key, so it is the same.
        sequence.text = self.rows.text[slot, : self.rows.num_known[slot]].copy()
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._leave(sequence)
        self._wait(sequence)

    def _choose_decoding(self, *, is_reading: bool) -> tuple[np.ndarray, int]:
        """Return the slots that decode, and how many tokens each at most."""
        rows, limits = self.rows, self.limits
        slots = rows.decoding()
        count = limits.num_decode_steps
        if limits.fixed_calls and is_reading and self._num_held < limits.num_slots:
            # A call takes as long for one row as for all, so that slots are filled first. Yet
            # ever more prompts, as those with answers of one token, must not stop other rows.
            self._num_held += 1
            return slots[:0], count
        self._num_held = 0
        # Programs for one token and for `num_decode_steps` exist, and none in between.
        if count == 1 or limits.fixed_calls or not len(slots):
            return slots, count
        left = rows.limit[slots] - 1 - rows.num_cached[slots]
        # One token while a prompt is read, so that requests that wait for their first token need
        # not wait for several calls of the others.
        # The largest of what is left: as long as one row can
        # use all tokens of a call, the call is worth it.
        is_one = is_reading or rows.one_by_one[slots].any() or int(left.max()) == 1
        if not is_one:
            ends = rows.num_cached[slots] + np.minimum(left, count)
            # Long calls take pages ahead; where they are short, one
            # token more for everybody is better than a preemption.
            missing = np.maximum(-(-ends // limits.page_size) - rows.num_pages[slots], 0)
            is_one = int(missing.sum()) > self.pool.num_free
        return slots, 1 if is_one else count

    def _choose_reading(self) -> tuple[np.ndarray, int]:
        """Return the slots that are prefilled, in order, and the length of chunks."""
        limits, rows = self.limits, self.rows
        waiting = rows.reading()
        if not len(waiting):
            return waiting, 0
        chosen: list[int] = []
        computing: set[bytes] = set()
        prompts: set[bytes] = set()
        length = 0
        for slot in waiting.tolist():
            sequence = self.sequences[slot]
            assert sequence is not None
            # `reads_alone` needs a program of its own; it waits for a step in which it comes first.
            if sequence.reads_alone and chosen:
                continue
            # Of rows with one text the first reads it; the others begin where it has ended.
            if (prompt := sequence.prompt_digest) is not None:
                if prompt in prompts or prompt in self.pages.prompts:
                    continue
                prompts.add(prompt)
            if limits.enable_prefix_caching:
                # Asked again at every chunk: another request
                # may have computed the next pages meanwhile.
                self.pages.share_prefix(sequence)
                # Another row of this call computes the same page: this one finds it a step later.
                if self.pages.next_digest_of(sequence) in computing:
                    continue
            missing = int(rows.target[slot] - rows.num_cached[slot])
            # The first, oldest row decides the length of chunks,
            # so none waits behind shorter ones for ever.
            if not length:
                length = limits.piece_length(missing)
                length = limits.alone_length if sequence.reads_alone else length
            chosen.append(slot)
            computing.update(self.pages.digests_within(sequence, min(missing, length)))
            most = limits.prefill_buckets[limits.chunk_lengths.index(length)][-1]
            if sequence.reads_alone or len(chosen) == most:
                break
        slots = np.asarray(chosen, np.int64)
        if not chosen:  # all of them begin with a prompt that was read
            return slots, 0
        missing = rows.target[slots] - rows.num_cached[slots]
        return slots[: limits.num_read(length, missing)], length

    def _before_inputs(self, slots: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the sizes of pieces, none of which ends within an input."""
        rows = self.rows
        ends = rows.num_cached[slots] + sizes
        within = [
            self.limits.in_input(rows.text[slot], end) if end < rows.target[slot] else 0
            for slot, end in zip(slots.tolist(), ends.tolist(), strict=True)
        ]
        shortened: np.ndarray = sizes - np.asarray(within, sizes.dtype)
        return shortened

    def _allocate(self, slots: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Allocate the pages that the next tokens of rows need; returns which rows can run."""
        rows = self.rows
        ends = rows.num_cached[slots] + sizes
        missing = np.maximum(-(-ends // self.limits.page_size) - rows.num_pages[slots], 0)
        got = np.ones(len(slots), bool)
        # Copies of shared pages count as well: they are taken from the same pool.
        while is_short := (int(missing.sum()) + self.pages.num_copies(slots) > self.pool.num_free):
            if not self.pages.prompts.drop_oldest():
                break
        self._was_short = is_short
        if not self._was_short:
            for place in np.flatnonzero(missing > 0).tolist():
                self.pages.allocate(int(slots[place]), int(missing[place]))
            self.pages.copy_on_write(slots)
            return got
        # Oldest first, so that the one who waited longest takes
        # from those that came later, and never the other way round.
        for place in np.argsort(rows.order[slots]).tolist():
            got[place] = self._give_first(int(slots[place]), int(missing[place]))
        # A row later in this list may have lost its slot to an older one.
        still: np.ndarray = got & rows.is_running[slots]
        return still

    def _give_first(self, slot: int, missing: int) -> bool:
        """Give a row its pages, those of later rows too if that is enough; returns whether so."""
        sequence = self.sequences[slot]
        if sequence is None:
            return False
        one = np.asarray([slot])
        holders = self.pages.holders_without(self._later(sequence.order))
        # Counted on paper first: preempting rows that do
        # not free enough would lose their work for nothing.
        if missing + self.pages.num_copies(one, holders) > int(np.count_nonzero(holders == 0)):
            return False
        while missing + self.pages.num_copies(one) > self.pool.num_free:
            self._preempt_last()
        self.pages.allocate(slot, missing)
        self.pages.copy_on_write(one)
        return True

    def _prefilled_prompts(self, read: ScheduledBatch) -> Iterable[tuple[int, bytes]]:
        """Keep prompts that a call reads to their end and others wait for; yield their rows."""
        for row in np.flatnonzero(read.num_sampled).tolist():
            sequence = self.sequences[read.slots[row]]
            assert sequence is not None
            digest = self.pages.prompts.add(sequence)
            if digest is not None:
                yield row, digest

    def _forks(self) -> Iterable[Fork]:
        """Yield rows whose prompt another one has read; they need no page before they decode."""
        prompts, rows = self.pages.prompts, self.rows
        for slot in rows.reading().tolist() if len(prompts) else ():
            sequence = self.sequences[slot]
            assert sequence is not None
            if sequence.prompt_digest in prompts:
                digest = self.pages.fork(sequence)
                one = np.asarray([slot])
                yield Fork(digest, self._sampling(one, rows.target[one]))

    def _sampling(self, slots: np.ndarray, ends: np.ndarray) -> ScheduledBatch:
        """Return rows that read nothing, and sample the token after their text."""
        none, ones = np.zeros(len(slots), np.int32), np.ones(len(slots), np.int32)
        return ScheduledBatch(slots, self.rows.generation[slots], ends, none, 1, ends, ones)

    def _call(
        self, slots: np.ndarray, sizes: np.ndarray, length: int, *, is_read: bool
    ) -> ScheduledBatch | None:
        """Return the call of rows that got what they need, and count it as done."""
        if not len(slots):
            return None
        rows = self.rows
        starts = rows.num_cached[slots]
        ends = starts + sizes
        # Before the call has run; `update_from_output` corrects nothing but who still is there.
        rows.num_cached[slots] = ends
        if is_read:
            first, sampled = ends, (ends == rows.target[slots]).astype(np.int32)
        else:
            first, sampled = starts + 1, sizes
        return ScheduledBatch(slots, rows.generation[slots], starts, sizes, length, first, sampled)
