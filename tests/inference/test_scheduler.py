"""Random schedules: no page lost, none written by two, nobody starved, the budget kept."""

import numpy as np
import pytest
from schedule_simulation import Simulation

from axcore.config import evolve
from axcore.inference import EngineConfig
from axcore.inference.config import batch_buckets
from axcore.inference.schedule import SchedulerConfig, SequenceState
from axcore.inference.scheduler import Scheduler
from axcore.plugins import Hardware


def simulate(seeds):
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            simulation.run_all(simulation.rng.randint(1, 8))
        except Exception as error:
            error.add_note(f"seed {seed}, {simulation.limits}")
            raise


def scheduler_of_pages(num_pages, *, page_size=1, enable_prefix_caching=False):
    """Returns a scheduler of three slots."""
    limits = SchedulerConfig(
        num_slots=3,
        max_length=num_pages * page_size,
        page_size=page_size,
        num_pages=num_pages,
        num_decode_steps=1,
        chunk_lengths=(16,),
        prefill_buckets=((1, 3),),
        alone_length=16,
        tokens_of_call=100,
        enable_prefix_caching=enable_prefix_caching,
    )
    return Scheduler(limits)


def added(scheduler, number, priority, size, limit):
    text = np.arange(size, dtype=np.int32)
    sequence = SequenceState(
        number=number, priority=priority, text=text, num_prompt=size, limit=limit
    )
    scheduler.add(sequence)
    return sequence


def step(scheduler):
    plan = scheduler.schedule()
    for call in (plan.prefill, plan.decode):
        if call is not None:
            scheduler.update_from_output(call, np.zeros((len(call.slots), 1), np.int32))
    return plan


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


def test_a_page_that_two_share_is_left_to_the_first_where_none_is_free():
    """The last row loses its pages, and what the first is to write on need not be copied."""
    scheduler = scheduler_of_pages(3, page_size=2, enable_prefix_caching=True)
    last = added(scheduler, 0, 1, 4, 6)
    step(scheduler)
    shared = list(last.pages)
    short, first = added(scheduler, 1, -1, 1, 4), added(scheduler, 2, 0, 4, 6)
    plan = step(scheduler)
    assert (len(short.pages), first.pages, plan.copies) == (1, shared, ())
    assert (first.num_preemptions, last.num_preemptions, last.pages) == (0, 1, [])


def test_a_schedule_in_which_a_shared_page_is_left_to_one_takes_none_for_nothing():
    simulate([45_008])


def scheduler_of_fixed_calls():
    limits = SchedulerConfig(
        num_slots=3,
        max_length=24,
        page_size=4,
        num_pages=18,
        num_decode_steps=4,
        chunk_lengths=(8,),
        prefill_buckets=((1,),),
        alone_length=8,
        chunk_alignment=8,
        enable_prefix_caching=False,
        fixed_calls=True,
    )
    return Scheduler(limits)


def test_calls_of_fixed_shapes_fill_every_slot_before_rows_decode():
    scheduler = scheduler_of_fixed_calls()
    for number in range(4):
        added(scheduler, number, 0, 8, 20)
    plans = [scheduler.schedule() for _ in range(4)]
    assert [plan.prefill is not None for plan in plans] == [True, True, True, False]
    assert [plan.decode and len(plan.decode.slots) for plan in plans] == [None, None, None, 3]


def test_with_fixed_shapes_prompts_without_end_do_not_stop_a_row_that_decodes():
    scheduler = scheduler_of_fixed_calls()
    added(scheduler, 0, 0, 8, 20)
    scheduler.schedule()
    decodes = []
    for number in range(1, 9):
        short = added(scheduler, number, 0, 8, 9)
        decodes.append(scheduler.schedule().decode is not None)
        scheduler.finish(short)
    assert decodes == [False, False, True, False, False, False, True, False]


def test_random_schedules_lose_no_page_and_starve_nobody():
    simulate(range(150))


@pytest.mark.slow
def test_many_random_schedules_lose_no_page_and_starve_nobody():
    simulate(range(1000, 11_000))


@pytest.mark.slow
@pytest.mark.long
def test_very_many_random_schedules_lose_no_page_and_starve_nobody():
    simulate(range(11_000, 101_000))


HOST, CHIP = "cpu-1", "tpu-v5p-8"


def limits_on(hardware, **changes):
    shapes = batch_buckets(
        evolve(EngineConfig(max_length=4096), **changes), Hardware.parse(hardware)
    )
    return SchedulerConfig(
        num_slots=16,
        max_length=4096,
        page_size=16,
        num_pages=4096,
        num_decode_steps=8,
        **shapes.limits,
    )


def pieces(limits, missing):
    found = []
    while missing > 0:
        found.append(limits.piece_length(missing))
        missing -= found[-1]
    return found


@pytest.mark.parametrize(
    ("hardware", "missing", "wanted"),
    [
        (HOST, 275, [256, 32]),
        (CHIP, 275, [512]),
        (HOST, 256, [256]),
        (HOST, 250, [256]),
        (HOST, 1, [16]),
        (HOST, 1300, [512, 512, 256, 32]),
        (CHIP, 1300, [512, 512, 512]),
    ],
)
def test_a_text_is_padded_or_cut_by_what_a_call_costs(hardware, missing, wanted):
    assert pieces(limits_on(hardware), missing) == wanted


@pytest.mark.parametrize("hardware", [HOST, CHIP])
def test_no_other_pieces_take_less_time(hardware):
    limits = limits_on(hardware, max_num_batched_tokens=128)
    min_kind = {0: 0}
    for missing in range(1, 200):
        min_kind[missing] = min(
            length + limits.tokens_of_call + min_kind[max(0, missing - length)]
            for length in limits.chunk_lengths
        )
        found = pieces(limits, missing)
        assert sum(found) + limits.tokens_of_call * len(found) == min_kind[missing], missing


def test_texts_are_read_together_where_that_reads_more_in_a_time():
    """A program of 4 rows of 64 tokens costs as much for two texts as for four."""
    texts = np.full(4, 60)
    assert limits_on(HOST).num_read(64, texts[:2]) == 1
    assert limits_on(HOST).num_read(64, texts) == 4
    assert limits_on(CHIP).num_read(64, texts[:1]) == 1
    assert limits_on(CHIP).num_read(64, texts[:2]) == 2
