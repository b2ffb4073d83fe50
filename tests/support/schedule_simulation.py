"""A random schedule: an engine without a model, and random requests to it.

The token after a text is a function of the full text. The simulation keeps what every page holds,
as the device would, and checks at each call that a row reads its own text, by its own adapter and
by no older weights than it may, and writes on pages that nobody else has.
"""

import random

import attrs
import numpy as np

from axcore.inference.schedule import SchedulerConfig, SequenceState
from axcore.inference.scheduler import Scheduler

END = 7
"""The token that ends a text in these schedules."""

ADAPTERS = (b"", b"", b"one", b"two")
"""What requests are answered by: half of them by none."""

NOTHING = (-1, None)
"""What a page holds that nobody wrote, or a draft token that was rejected."""


def random_limits(rng):
    page_size = rng.choice((1, 2, 4))
    num_slots = rng.randint(1, 5)
    max_length = rng.randint(4, 24)
    pages_of_one = -(-max_length // page_size)
    lengths = rng.choice(((2, 4, 8), (4,), (1, 16)))
    alone = rng.choice(lengths)
    return SchedulerConfig(
        num_slots=num_slots,
        max_length=max_length,
        page_size=page_size,
        num_pages=pages_of_one + rng.randint(0, 2 * pages_of_one),
        num_decode_steps=rng.choice((1, 3)),
        chunk_lengths=lengths,
        prefill_buckets=tuple(tuple(sorted({1, rng.randint(1, 4)})) for _ in lengths),
        tokens_of_call=rng.choice((0, 1, 8)),
        alone_length=alone,
        enable_prefix_caching=rng.random() < 0.8,
    )


def of_fixed_shapes(limits, rng):
    """Returns limits whose calls have the same shapes, and whose texts are cut at the same places.

    No row is read again: there are pages for all.
    """
    length = limits.page_size * rng.randint(1, 4)
    return attrs.evolve(
        limits,
        num_pages=limits.num_slots * -(-limits.max_length // limits.page_size),
        chunk_lengths=(length,),
        prefill_buckets=((1,),),
        alone_length=length,
        chunk_alignment=length,
        fixed_calls=True,
    )


def of_few_programs(limits):
    """Returns the limits of an engine whose programs are not all compiled."""
    return attrs.evolve(limits, chunk_lengths=(limits.alone_length,), prefill_buckets=((1,),))


class Simulation:
    """One schedule.

    Args:
        seed: Of all that is random.
    """

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.limits = random_limits(rng)
        if rng.random() < 0.2:
            self.limits = of_fixed_shapes(self.limits, rng)
        self.is_fixed = self.limits.fixed_calls
        self.draft_tokens = not self.is_fixed and rng.random() < 0.3
        is_growing = not self.is_fixed and rng.random() < 0.3
        self.scheduler = Scheduler(of_few_programs(self.limits) if is_growing else self.limits)
        pages, size = self.limits.num_pages, self.limits.page_size
        self.sampler_state = [[NOTHING] * size for _ in range(pages)]
        self.num_weights = 0  # how often there were new ones
        self.pending, self.logits = [], {}
        self.sequences, self.texts, self.oldest_weights = [], {}, {}
        self.prompts, self.num_forks = [], 0
        self.common = [rng.randrange(6) for _ in range(self.limits.max_length)]

    def submit(self):
        rng, longest = self.rng, self.limits.max_length
        size = rng.randint(1, longest - 1)
        keep = rng.randint(0, size)
        prompt = self.common[:keep] + [rng.randrange(6) for _ in range(size - keep)]
        adapter = rng.choice(ADAPTERS)
        if self.sequences and rng.random() < 0.4:  # another sample of a prompt
            prompt, adapter = self.prompts[rng.randrange(len(self.prompts))]
            size = len(prompt)
        self.prompts.append((prompt, adapter))
        sequence = SequenceState(
            number=len(self.sequences),
            priority=rng.choice((0, 0, 0, -1, 1)),
            text=np.asarray(prompt, np.int32),
            num_prompt=size,
            limit=rng.randint(size + 1, longest),
            salt=f"{self.num_weights}/".encode() + adapter,
            one_by_one=not self.is_fixed and rng.random() < 0.1,
            reads_alone=rng.random() < 0.1,
        )
        self.sequences.append(sequence)
        self.texts[sequence.number] = list(prompt)
        self.oldest_weights[sequence.number] = self.num_weights
        self.scheduler.add(sequence)

    def replace_weights(self):
        """Lets no request from now on find what is computed up to now."""
        self.num_weights += 1
        self.scheduler.reset_prefix_cache()

    def expected(self, sequence, length):
        """Returns a text continued as the model would alone."""
        text = self.texts[sequence.number][: sequence.num_prompt]
        while len(text) < length:
            text.append(next_token(text, sequence))
        return text

    def step(self):
        scheduler = self.scheduler
        if self.draft_tokens:
            self.take_in_all()
        before = [
            (sequence, sequence.num_preemptions, list(sequence.pages))
            for sequence in self.sequences
        ]
        holders = list(scheduler.pool.holders)
        plan = scheduler.schedule()
        self.assert_taken_for_somebody(before, holders, plan)
        for source, target in plan.copies:
            self.sampler_state[target] = list(self.sampler_state[source])
        scheduler.pool.check(
            [
                *(sequence.pages for sequence in scheduler.sequences if sequence is not None),
                *scheduler.pages.prompts.held_pages,
            ]
        )
        self.assert_within_limits(plan)
        self.logits |= {prompt: plan.prefill.slots[row] for row, prompt in plan.prefilled}
        # Their pages are shared from here on, which the call is still to write.
        self.shared = {
            page
            for row, _ in plan.prefilled
            for page in scheduler.sequences[plan.prefill.slots[row]].pages
        }
        for fork in plan.forks:
            assert fork.prompt in self.logits, "nobody has read this prompt"
        self.num_forks += len(plan.forks)
        for call in (plan.prefill, *(fork.batch for fork in plan.forks), plan.decode):
            if call is not None:
                self.launch(call, is_guessed=self.draft_tokens and call is plan.decode)
        self.logits = {p: s for p, s in self.logits.items() if p in scheduler.pages.prompts}
        while len(self.pending) > (0 if self.rng.random() < 0.3 else 2):
            self.take_in(*self.pending.pop(0))
        if plan.is_empty:
            self.take_in_all()
        return plan

    def assert_within_limits(self, plan):
        limits, read, decode = self.scheduler.limits, plan.prefill, plan.decode
        if read is not None:
            assert read.sizes.max() <= read.length
            most = limits.prefill_buckets[limits.chunk_lengths.index(read.length)][-1]
            assert len(read.slots) <= most
        if self.is_fixed:
            assert read is None or not (read.starts % limits.chunk_alignment).any()
            assert decode is None or decode.length == limits.num_decode_steps
            assert self.scheduler.num_preemptions == 0

    def assert_taken_for_somebody(self, before, holders, plan):
        """Asserts that rows lost their pages only where one before them got some, or a slot.

        A page that a row shared and is to write on it also gets by the others losing it.
        """
        taken = [
            sequence.order for sequence, number, _ in before if sequence.num_preemptions > number
        ]
        if taken:
            got = [
                sequence.order
                for sequence, _, pages in before
                if sequence.pages and sequence.pages != pages
            ]
            got += [sequence.order for sequence in plan.started if sequence.slot is not None]
            got += [
                sequence.order for sequence, page in self.written_first(plan) if holders[page] > 1
            ]
            assert min(got, default=max(taken)) < min(taken), "pages are taken for nothing"

    def written_first(self, plan):
        """Yields the rows of a plan, each with the first page that it writes on."""
        for call in filter(None, (plan.prefill, plan.decode)):
            for slot, start in zip(call.slots, call.starts, strict=True):
                sequence = self.scheduler.sequences[slot]
                yield sequence, sequence.pages[start // self.limits.page_size]

    def launch(self, call, *, is_guessed):
        """Runs a call; where tokens are drafted, some rows decode fewer than was planned."""
        counts = None
        if is_guessed and call.length > 1:
            if self.rng.random() < 0.3:  # there was nothing to draft
                call = self.scheduler.truncate(call, np.ones_like(call.sizes))
            else:
                counts = np.asarray([self.rng.randint(1, int(size)) for size in call.sizes])
        self.pending.append((call, self.run(call, counts), counts))

    def run(self, call, counts):
        width = int(max(1, call.num_sampled.max(initial=0)))
        drawn = np.zeros((len(call.slots), width), np.int32)
        written = []
        for row, slot in enumerate(call.slots):
            sequence = self.scheduler.sequences[slot]
            start, size = int(call.starts[row]), int(call.sizes[row])
            text = self.expected(sequence, start + size + 1)
            assert start + size <= sequence.limit - 1
            self.assert_holds(sequence, text[:start])
            right = size if counts is None else int(counts[row])
            written += self.write(sequence, text, (start, start + right, start + size))
            for i in range(int(call.num_sampled[row])):
                drawn[row, i] = text[int(call.first_sampled[row]) + i]
        assert len(set(written)) == len(written)
        return drawn

    def assert_holds(self, sequence, text):
        held = [one for page in sequence.pages for one in self.sampler_state[page]][: len(text)]
        wanted = [digest(sequence, text[: i + 1]) for i in range(len(text))]
        assert [what for what, _ in held] == wanted, sequence
        oldest = self.oldest_weights[sequence.number]
        assert all(weights >= oldest for _, weights in held), "it reads what old weights computed"

    def write(self, sequence, text, places):
        """Writes a text on pages, and rejected draft tokens behind it; returns those pages."""
        start, right, end = places
        size = self.limits.page_size
        for place in range(start, end):
            page = sequence.pages[place // size]
            assert self.scheduler.pool.holders[page] == 1 or page in self.shared
            what = digest(sequence, text[: place + 1]) if place < right else None
            self.sampler_state[page][place % size] = (what, self.num_weights) if what else NOTHING
        return {sequence.pages[place // size] for place in range(start, end)}

    def take_in_all(self):
        while self.pending:
            self.take_in(*self.pending.pop(0))

    def take_in(self, call, drawn, counts):
        sequences = [self.scheduler.sequences[slot] for slot in call.slots]
        if counts is not None:
            call = self.scheduler.truncate(call, counts)
        current = self.scheduler.update_from_output(call, drawn)
        for row in np.flatnonzero(current):
            sequence, first = sequences[row], int(call.first_sampled[row])
            tokens = drawn[row, : int(call.num_sampled[row])].tolist()
            known = self.texts[sequence.number]
            if tokens:
                assert len(known) == first
            for token in tokens:
                known.append(token)
                if token == END or len(known) == sequence.limit:
                    self.scheduler.finish(sequence)
                    break

    def run_all(self, num_jobs):
        steps = 0
        while len(self.sequences) < num_jobs or not all(
            sequence.is_over for sequence in self.sequences
        ):
            while len(self.sequences) < num_jobs and self.rng.random() < 0.4:
                self.submit()
            if self.sequences and self.rng.random() < 0.03:
                self.scheduler.finish(self.rng.choice(self.sequences))
            if self.rng.random() < 0.03:
                self.replace_weights()
            if self.rng.random() < 0.1:
                self.scheduler.limits = self.limits  # all programs are compiled
            self.step()
            steps += 1
            work = sum(
                sequence.limit * (1 + sequence.num_preemptions) for sequence in self.sequences
            )
            assert steps <= 20 + 4 * num_jobs + 3 * work, "somebody starves"
        assert self.scheduler.pool.num_used == 0
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        for sequence in self.sequences:
            text = self.texts[sequence.number]
            assert text == self.expected(sequence, len(text))


def adapter_of(sequence):
    return sequence.salt.partition(b"/")[2]


def digest(sequence, text):
    return hash((adapter_of(sequence), tuple(text)))


def next_token(text, sequence):
    return (sum(text) * 31 + len(text) * 7 + text[-1] + len(adapter_of(sequence))) % 8
