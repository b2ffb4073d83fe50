"""`sample_many`: completions in the order of requests, some in flight and never too many."""

import itertools

import pytest
from held_engines import busy
from next_letter import NextLetter, letter_chain

from axcore.data import ByteTokenizer
from axcore.errors import RequestError
from axcore.inference import Engine, EngineConfig, Request, Sampling, sample_many, sample_seed

TOKENIZER = ByteTokenizer.Config().build()
LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def engine():
    cfg = EngineConfig(
        max_num_seqs=2,
        max_length=32,
        page_size=4,
        max_num_batched_tokens=8,
        num_decode_steps=2,
        fixed_shapes=True,
        sampler_kinds=("greedy",),
        max_queue=3,
    )
    model = NextLetter.Config(vocab_size=TOKENIZER.vocab_size).build()
    state = letter_chain(LETTERS, TOKENIZER.vocab_size)
    with Engine(model, state, TOKENIZER, cfg) as engine:
        yield engine


def requests(lengths):
    """Yields a request for each length, whose first letters follow one another."""
    for letter, length in zip(itertools.cycle(LETTERS), lengths, strict=False):
        yield Request(prompt=(ord(letter),), max_tokens=length, sampling=Sampling(temperature=0))


def texts(lengths):
    """Returns what `requests` are answered by."""
    circle = LETTERS * 9
    starts = itertools.cycle(range(1, 1 + len(LETTERS)))
    return [circle[start : start + size] for start, size in zip(starts, lengths, strict=False)]


def test_completions_come_in_the_order_of_requests_whichever_ends_first(engine):
    lengths = [20, 1, 3, 1, 9, 2, 1, 7, 5, 1]  # more than may wait: QueueFull is waited for
    found = [one.text for one in sample_many(engine, requests(lengths))]
    assert found == texts(lengths)


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_are_asked_for_than_may_be_in_flight(engine, most):
    taken = []

    def counted():
        for one in requests([2] * 8):
            taken.append(one)
            yield one

    for number, _ in enumerate(sample_many(engine, counted(), max_in_flight=most)):
        assert len(taken) <= number + most
    assert len(taken) == 8


def test_a_caller_that_stops_cancels_what_is_in_flight(engine):
    before = engine.stats().num_sampled_tokens
    completions = sample_many(engine, requests([1, 30, 30, 30]), max_in_flight=4)
    with busy(engine):
        first = engine.submit(next(requests([1])))
    first.result(60)
    next(completions)
    completions.close()
    engine.submit(next(requests([1]))).result(60)  # after the cancellations
    stats = engine.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.num_sampled_tokens - before < 60


def test_a_request_that_can_never_be_answered_is_raised_and_the_engine_continues(engine):
    asked = [*requests([2]), Request(prompt=(), max_tokens=1)]
    with pytest.raises(RequestError, match="no token"):
        list(sample_many(engine, asked, max_in_flight=1))
    assert [one.text for one in sample_many(engine, requests([2]))] == texts([2])


def test_nothing_asked_is_nothing_answered(engine):
    assert list(sample_many(engine, ())) == []


def test_seeds_follow_from_their_parts_and_differ():
    seeds = {sample_seed(s, i, j) for s in range(4) for i in range(30) for j in range(4)}
    assert len(seeds) == 480
    assert sample_seed(1, 23) != sample_seed(12, 3)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert (
        sample_seed(0, 1, 2) == 7324074409984376592
    )  # the same for ever: files of answers are continued by it
