"""Random schedules: no page lost, none written by two, nobody starved, the budget kept."""

import random

import numpy as np
import pytest

from axcore.inference.scheduler import Scheduler
from axcore.inference.step_plan import Job, Limits

END = 7
"""The token that ends a text in these schedules."""


def random_limits(rng):
    page_size = rng.choice((1, 2, 4))
    num_slots = rng.randint(1, 5)
    max_length = rng.randint(4, 24)
    pages_of_one = -(-max_length // page_size)
    lengths = rng.choice(((2, 4, 8), (4,), (1, 16)))
    return Limits(
        num_slots=num_slots,
        max_length=max_length,
        page_size=page_size,
        num_pages=pages_of_one + rng.randint(0, 2 * pages_of_one),
        step_tokens=num_slots + lengths[0] + rng.randint(0, 12),
        tokens_per_call=rng.choice((1, 3)),
        chunk_lengths=lengths,
        chunk_rows=tuple(rng.randint(1, 4) for _ in lengths),
        alone_length=lengths[0],
        shares_prefixes=rng.random() < 0.8,
    )


class Simulation:
    """An engine without a model: the token after a text is a function of the whole text.

    It keeps what every page holds, as the device would, and checks at each call that a row reads
    its own text and writes on pages that nobody else has.
    """

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.limits = random_limits(rng)
        self.scheduler = Scheduler(self.limits)
        self.memory = np.full((self.limits.num_pages, self.limits.page_size), -1)
        self.pending = []
        self.jobs, self.texts = [], {}
        self.common = [rng.randrange(6) for _ in range(self.limits.max_length)]

    def submit(self):
        rng, longest = self.rng, self.limits.max_length
        size = rng.randint(1, longest - 1)
        keep = rng.randint(0, size)
        prompt = self.common[:keep] + [rng.randrange(6) for _ in range(size - keep)]
        job = Job(
            number=len(self.jobs),
            priority=rng.choice((0, 0, 0, -1, 1)),
            text=np.asarray(prompt, np.int32),
            num_prompt=size,
            limit=rng.randint(size + 1, longest),
            one_by_one=rng.random() < 0.1,
            reads_alone=rng.random() < 0.1,
        )
        self.jobs.append(job)
        self.texts[job.number] = list(prompt)
        self.scheduler.add(job)

    def expected(self, job, length):
        """Returns a text continued as the model would alone."""
        text = self.texts[job.number][: job.num_prompt]
        while len(text) < length:
            text.append(next_token(text))
        return text

    def step(self):
        scheduler, limits = self.scheduler, self.limits
        before = [(job, job.num_preemptions, list(job.pages)) for job in self.jobs]
        plan = scheduler.plan()
        self.assert_taken_for_somebody(before, plan.started)
        for source, target in plan.copies:
            self.memory[target] = self.memory[source]
        scheduler.pool.check([job.pages for job in scheduler.jobs if job is not None])
        if plan.read is not None:
            drawing = 0 if plan.draw is None else len(plan.draw.slots)
            assert plan.read.sizes.sum() + drawing <= limits.step_tokens
            assert plan.read.sizes.max() <= plan.read.length
            most = limits.chunk_rows[limits.chunk_lengths.index(plan.read.length)]
            assert len(plan.read.slots) <= most
        for call in (plan.read, plan.draw):
            if call is not None:
                self.pending.append((call, self.run(call)))
        while len(self.pending) > (0 if self.rng.random() < 0.3 else 2):
            self.take_in(*self.pending.pop(0))
        if plan.is_empty:
            while self.pending:
                self.take_in(*self.pending.pop(0))
        return plan

    def assert_taken_for_somebody(self, before, started):
        """Asserts that rows lost their pages only where one before them got some, or a slot."""
        taken = [job.order for job, number, _ in before if job.num_preemptions > number]
        if taken:
            got = [job.order for job, _, pages in before if job.pages and job.pages != pages]
            got += [job.order for job in started if job.slot is not None]
            assert min(got, default=max(taken)) < min(taken), "pages are taken for nothing"

    def run(self, call):
        width = int(max(1, call.num_drawn.max(initial=0)))
        drawn = np.zeros((len(call.slots), width), np.int32)
        written = []
        for row, slot in enumerate(call.slots):
            job = self.scheduler.jobs[slot]
            start, size = int(call.starts[row]), int(call.sizes[row])
            text = self.expected(job, start + size + 1)
            assert start + size <= job.limit - 1
            self.assert_holds(job, text[:start])
            written += self.write(job, text, start, start + size)
            for i in range(int(call.num_drawn[row])):
                drawn[row, i] = text_token(text, int(call.first_drawn[row]) + i)
        assert len(set(written)) == len(written)
        return drawn

    def assert_holds(self, job, text):
        size = self.limits.page_size
        held = self.memory[job.pages].reshape(-1)[: len(text)].tolist()
        assert held == [digest(text[: i + 1]) for i in range(len(text))], (size, job)

    def write(self, job, text, start, end):
        size = self.limits.page_size
        for place in range(start, end):
            page = job.pages[place // size]
            assert self.scheduler.pool.holders[page] == 1
            self.memory[page, place % size] = digest(text[: place + 1])
        return {job.pages[place // size] for place in range(start, end)}

    def take_in(self, call, drawn):
        jobs = [self.scheduler.jobs[slot] for slot in call.slots]
        current = self.scheduler.record(call, drawn)
        for row in np.flatnonzero(current):
            job, first = jobs[row], int(call.first_drawn[row])
            tokens = drawn[row, : int(call.num_drawn[row])].tolist()
            known = self.texts[job.number]
            if tokens:
                assert len(known) == first
            for token in tokens:
                known.append(token)
                if token == END or len(known) == job.limit:
                    self.scheduler.finish(job)
                    break

    def run_all(self, num_jobs):
        steps = 0
        while len(self.jobs) < num_jobs or not all(job.is_over for job in self.jobs):
            while len(self.jobs) < num_jobs and self.rng.random() < 0.4:
                self.submit()
            if self.jobs and self.rng.random() < 0.03:
                self.scheduler.finish(self.rng.choice(self.jobs))
            self.step()
            steps += 1
            work = sum(job.limit * (1 + job.num_preemptions) for job in self.jobs)
            assert steps <= 20 + 4 * num_jobs + 3 * work, "somebody starves"
        assert self.scheduler.pool.num_used == 0
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        for job in self.jobs:
            text = self.texts[job.number]
            assert text == self.expected(job, len(text))


def digest(text):
    return hash(tuple(text))


def next_token(text):
    return (sum(text) * 31 + len(text) * 7 + text[-1]) % 8


def text_token(text, place):
    while len(text) <= place:
        text.append(next_token(text))
    return text[place]


def simulate(seeds):
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            simulation.run_all(simulation.rng.randint(1, 8))
        except Exception as error:
            error.add_note(f"seed {seed}, {simulation.limits}")
            raise


def scheduler_of_pages(num_pages):
    """Returns a scheduler of three slots, and pages of one token that nobody shares."""
    limits = Limits(
        num_slots=3,
        max_length=num_pages,
        page_size=1,
        num_pages=num_pages,
        step_tokens=40,
        tokens_per_call=1,
        chunk_lengths=(16,),
        chunk_rows=(3,),
        alone_length=16,
        shares_prefixes=False,
    )
    return Scheduler(limits)


def added(scheduler, number, priority, size, limit):
    text = np.arange(size, dtype=np.int32)
    job = Job(number=number, priority=priority, text=text, num_prompt=size, limit=limit)
    scheduler.add(job)
    return job


def step(scheduler):
    plan = scheduler.plan()
    for call in (plan.read, plan.draw):
        if call is not None:
            scheduler.record(call, np.zeros((len(call.slots), 1), np.int32))


@pytest.mark.parametrize(("size", "is_taken"), [(4, False), (3, True)])
def test_a_waiting_text_takes_pages_only_where_they_are_enough(size, is_taken):
    scheduler = scheduler_of_pages(10)
    first, last = added(scheduler, 0, -1, 5, 10), added(scheduler, 1, 1, 3, 4)
    step(scheduler)
    assert len(first.pages) == 5
    assert len(last.pages) == 3
    between = added(scheduler, 2, 0, size + 1, 10)  # it needs one page more than its text has
    step(scheduler)
    assert (last.num_preemptions, between.slot is not None) == (int(is_taken), is_taken)


def test_random_schedules_lose_no_page_and_starve_nobody():
    simulate(range(150))


@pytest.mark.slow
def test_many_random_schedules_lose_no_page_and_starve_nobody():
    simulate(range(1000, 11_000))


@pytest.mark.slow
@pytest.mark.long
def test_very_many_random_schedules_lose_no_page_and_starve_nobody():
    simulate(range(11_000, 101_000))
