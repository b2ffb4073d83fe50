"""Requests with one prompt read it once: its last, partly full page and its logits are shared."""

import attrs
import numpy as np
import pytest
from held_engines import busy

from axcore.data import ByteTokenizer
from axcore.inference import Engine, EngineConfig, Request, Sampling
from axcore.inference.grammar import regex
from axcore.inference.schedule import SchedulerConfig, SequenceState
from axcore.inference.scheduler import Scheduler
from axcore.models import transformer

TOKENIZER = ByteTokenizer.Config().build()
MODEL = transformer(vocab_size=264, dim=16, num_layers=1, num_heads=2, hidden_dim=16).build()
STATE = MODEL.init(0)
PROMPT = tuple(b"to be or not to be, that is")
HOT = Sampling(temperature=1.0)
LIMITS = SchedulerConfig(
    num_slots=4,
    max_length=12,
    page_size=4,
    num_pages=12,
    num_decode_steps=3,
    chunk_lengths=(8,),
    prefill_buckets=((1, 2),),
    alone_length=8,
)


def samples(count, prompt=PROMPT, **values):
    common = {"max_tokens": 9, "sampling": HOT, "num_logprobs": 1, "ignores_end": True, **values}
    return [Request(prompt=prompt, seed=seed, **common) for seed in range(count)]


def opened(**values):
    sizes = {"max_num_seqs": 3, "max_length": 64, "page_size": 8, "num_decode_steps": 4}
    sizes = {**sizes, "sampler_kinds": ("plain",), **values}
    return Engine(MODEL, STATE, TOKENIZER, EngineConfig(max_num_batched_tokens=16, **sizes))


def num_prefilled(engine):
    stats = engine.stats()
    return stats.num_prompt_tokens - stats.num_cached_prompt_tokens


def sequence(number, text=range(6), limit=12, **values):
    text = np.asarray(text, np.int32)
    return SequenceState(number=number, priority=0, text=text, num_prompt=6, limit=limit, **values)


def step(scheduler, token=9):
    """Runs a step whose every sampled token is the same; returns its plan."""
    plan = scheduler.schedule()
    for batch in (plan.prefill, *(fork.batch for fork in plan.forks), plan.decode):
        if batch is not None:
            width = max(1, int(batch.num_sampled.max()))
            scheduler.update_from_output(batch, np.full((len(batch.slots), width), token))
    tables = [one.pages for one in scheduler.sequences if one is not None]
    scheduler.pool.check([*tables, *scheduler.pages.prompts.held_pages])
    return plan


def test_rows_begin_with_all_pages_of_a_prompt_and_write_on_copies_but_one():
    scheduler = Scheduler(LIMITS)
    rows = [sequence(number) for number in range(3)]
    for row in rows:
        scheduler.add(row)
    plan = step(scheduler)
    assert (plan.prefill.sizes.tolist(), len(plan.forks), plan.decode) == ([6], 2, None)
    assert rows[0].pages == rows[1].pages == rows[2].pages
    assert [row.num_shared for row in rows] == [0, 6, 6]
    shared = rows[0].pages[1]
    plan = step(scheduler)
    assert (plan.prefill, len(plan.decode.slots), len(plan.copies)) == (None, 3, 2)
    assert {source for source, _ in plan.copies} == {shared}
    assert len({row.pages[1] for row in rows}) == 3
    assert len({row.pages[0] for row in rows}) == 1


def test_a_prompt_is_kept_while_others_with_it_wait_for_a_slot_and_no_longer():
    scheduler = Scheduler(LIMITS)
    rows = [sequence(number) for number in range(6)]
    for row in rows:
        scheduler.add(row)
    assert len(step(scheduler).forks) == 3
    assert len(scheduler.pages.prompts) == 1
    scheduler.finish(rows[1])
    plan = step(scheduler)
    assert (plan.prefill, len(plan.forks), plan.started) == (None, 1, (rows[4],))
    scheduler.finish(rows[5])
    assert len(scheduler.pages.prompts) == 0
    for row in rows:
        scheduler.finish(row)
    assert scheduler.pool.num_used == 0


def test_who_waits_for_a_prompt_reads_it_where_its_reader_has_gone():
    scheduler = Scheduler(attrs.evolve(LIMITS, chunk_lengths=(4,), alone_length=4))
    rows = [sequence(number) for number in range(3)]
    for row in rows:
        scheduler.add(row)
    assert step(scheduler).prefill.sizes.tolist() == [4]
    scheduler.finish(rows[0])
    plan = step(scheduler)
    assert (plan.prefill.starts.tolist(), plan.prefill.slots.tolist()) == ([4], [rows[1].slot])
    assert [fork.batch.slots.tolist() for fork in plan.forks] == [[rows[2].slot]]


def test_texts_of_other_weights_or_adapters_and_scored_ones_share_nothing():
    scheduler = Scheduler(attrs.evolve(LIMITS, prefill_buckets=((1, 4),)))
    for number, values in enumerate(({}, {"salt": b"1/"}, {"salt": b"0/a"})):
        scheduler.add(sequence(number, **values))
    scheduler.add(sequence(3, reads_alone=True))
    assert sum(len(step(scheduler).forks) for _ in range(4)) == 0


def test_new_weights_share_nothing_with_a_prompt_that_old_ones_began():
    scheduler = Scheduler(attrs.evolve(LIMITS, chunk_lengths=(4,), alone_length=4))
    rows = [sequence(number) for number in range(2)]
    for row in rows:
        scheduler.add(row)
    assert step(scheduler).prefill.sizes.tolist() == [4]
    scheduler.reset_prefix_cache()
    plans = [step(scheduler) for _ in range(4)]
    assert not any(plan.forks for plan in plans)
    assert sum(int(plan.prefill.sizes.sum()) for plan in plans if plan.prefill) == 2 + 6


def test_with_fixed_shapes_copies_need_no_page_more_than_rows_have():
    """Pages for all rows are enough for any number of samples, one short page each."""
    limits = attrs.evolve(
        LIMITS, max_length=4, num_pages=4, chunk_alignment=4, chunk_lengths=(4,), alone_length=4
    )
    scheduler = Scheduler(attrs.evolve(limits, prefill_buckets=((1,),), fixed_calls=True))
    for number in range(8):
        scheduler.add(sequence(number, range(2), 4))
    assert len(step(scheduler).forks) == 3
    plan = step(scheduler)
    assert (len(plan.decode.slots), len(plan.copies), scheduler.num_preemptions) == (4, 3, 0)


def test_with_fixed_shapes_samples_have_the_bits_of_requests_sent_one_by_one():
    """Of prompts that end within a page and at its end, by more samples than there are slots."""
    prompts = PROMPT[:27], PROMPT[::-1][:24], tuple(b"abcde")
    asked = [one for prompt in prompts for one in samples(5, prompt)]
    with opened(fixed_shapes=True, enable_prefix_caching=False) as engine:
        alone = [engine.submit(one).result(60).tokens for one in asked]
        assert num_prefilled(engine) == 5 * (27 + 24 + 5)
    with opened(fixed_shapes=True) as engine:
        together = [answer.result(60) for answer in engine.submit_all(asked)]
        assert num_prefilled(engine) == 27 + 24 + 5
    assert [answer.tokens for answer in together] == alone
    assert [answer.num_cached_prompt_tokens for answer in together[:5]] == [0] + [27] * 4
    assert len(set(alone)) > 12


@pytest.mark.slow
def test_samples_are_those_of_requests_sent_one_by_one_with_penalties_and_grammars_too():
    pytest.importorskip("llguidance")
    penalties = Sampling(temperature=1.0, top_p=0.9, presence_penalty=1.0, repetition_penalty=1.5)
    asked = [
        *samples(3, sampling=penalties),
        *samples(3, grammar=regex("[ab]{4}c+")),
        *samples(2, PROMPT[:9], sampling=Sampling(temperature=0)),
    ]
    with opened(sampler_kinds=("full",)) as engine:
        alone = [engine.submit(one).result(60) for one in asked]
    with opened(sampler_kinds=("full",)) as engine:
        engine.warm_up()
        together = [answer.result(60) for answer in engine.submit_all(asked)]
        assert num_prefilled(engine) < len(PROMPT) + 16
        assert engine.stats().compilations_after_warm_up == 0
    assert [one.text for one in together] == [one.text for one in alone]
    for one, other in zip(together, alone, strict=True):
        found, expected = ([token.logprob for token in it.tokens] for it in (one, other))
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_samples_continue_where_the_first_of_them_is_cancelled():
    with opened(fixed_shapes=True) as engine:
        expected = [answer.result(60).tokens for answer in engine.submit_all(samples(4))]
        with busy(engine):
            answers = engine.submit_all(samples(4))
            answers[0].cancel()
        assert [answer.result(60).tokens for answer in answers[1:]] == expected[1:]
        assert engine.stats().pages_used == engine.stats().num_running == 0


def test_with_fixed_shapes_a_text_with_an_answer_has_the_bits_of_one_that_nobody_answered():
    """What decoding left in the cache has other bits than reading the same text."""
    with opened(fixed_shapes=True) as engine:
        first = engine.submit(samples(1, max_tokens=30)[0]).result(60)
        longer = (*PROMPT, *(token.id for token in first.tokens))
        found = engine.submit(samples(1, longer, max_tokens=5)[0]).result(60)
    with opened(fixed_shapes=True) as engine:
        assert engine.submit(samples(1, longer, max_tokens=5)[0]).result(60).tokens == found.tokens
