"""A replica that fails takes what it worked on with it, and nothing else."""

import logging
import threading

import jax
import pytest
from held_engines import broken, held
from next_letter import NextLetter, letter_chain

from axcore.data import ByteTokenizer
from axcore.errors import EngineError
from axcore.inference import EngineConfig, Request, Sampling, open_engine
from axcore.parallel import make_mesh

TOKENIZER = ByteTokenizer.Config().build()
MODEL = NextLetter.Config(vocab_size=TOKENIZER.vocab_size).build()
CFG = EngineConfig(
    max_num_seqs=2,
    max_length=32,
    page_size=4,
    num_decode_steps=1,
    max_num_batched_tokens=18,
    batch_size_buckets=(2,),
    max_queue=3,
)
TEXTS = "abcdab"


def chain(text):
    return letter_chain(text, TOKENIZER.vocab_size)


def request(text="a", max_tokens=6, **values):
    sampling = Sampling(temperature=0)
    return Request(prompt=tuple(text.encode()), max_tokens=max_tokens, sampling=sampling, **values)


def expected(text, circle="abcd"):
    start = circle.index(text) + 1
    return (circle * 3)[start : start + 6]


@pytest.fixture
def replicas():
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    with open_engine(MODEL, chain("abcd"), TOKENIZER, CFG, mesh=mesh) as found:
        yield found


def outcome(answer):
    """Returns the text of an answer, or the error that ended it."""
    try:
        return answer.result(60).text
    except EngineError as error:
        return error


def test_requests_that_wait_go_to_another_replica_and_those_at_work_fail(replicas, caplog):
    with held(replicas):
        answers = [replicas.submit(request(text)) for text in TEXTS]
        broken(replicas._engines[1])
    found = [outcome(answer) for answer in answers]
    lost = [index for index, one in enumerate(found) if isinstance(one, EngineError)]
    assert lost == [1, 3]  # of 1, 3 and 5, which it was sent, it had slots for two
    assert all(found[i] == expected(text) for i, text in enumerate(TEXTS) if i not in lost)
    for index in lost:
        assert "a step of the engine failed" in found[index].what
        assert found[index].where == "replica 1 of 2"
        assert found[index].hint == "ask again: other replicas answer"
    stats = replicas.stats()
    assert (stats.num_replicas, stats.num_failed_replicas) == (2, 1)
    assert (stats.num_moved, stats.num_lost) == (1, 2)
    assert (stats.num_slots, stats.num_waiting, stats.num_running) == (2, 0, 0)
    replicas.drain()
    said = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(said) == 1
    assert "replica 1 of 2 answers no more" in said[0].getMessage()
    assert "2 requests that it worked on failed, 1 of 1 that waited" in said[0].getMessage()


def test_the_others_answer_and_change_and_when_none_is_left_all_ends(replicas):
    first, last = replicas._engines
    broken(last)
    assert isinstance(outcome(last.submit(request())), EngineError)
    assert replicas.error is None
    replicas.replace_weights(chain("dcba"))
    with held(replicas):
        answers = [replicas.submit(request(text)) for text in "abc"]
    assert [outcome(one) for one in answers] == [expected(text, "dcba") for text in "abc"]
    broken(first)
    assert isinstance(outcome(first.submit(request())), EngineError)
    first.drain()
    assert "a step of the engine failed" in replicas.error.what
    for refused in (
        lambda: replicas.submit(request()),
        lambda: replicas.replace_weights(chain("abcd")),
    ):
        with pytest.raises(EngineError, match="a step of the engine failed"):
            refused()
    assert replicas.stats().num_failed_replicas == 2
    assert replicas.stats().num_slots == 0


def test_draining_waits_for_requests_that_are_moved_meanwhile(replicas):
    with held(replicas):
        answers = [replicas.submit(request(text)) for text in TEXTS]
        broken(replicas._engines[1])
    replicas.drain()
    assert all(answer.is_finished for answer in answers)
    assert replicas.stats().num_moved == 1


def test_a_request_is_moved_to_a_full_queue_and_can_be_cancelled_there(replicas):
    first, last = replicas._engines
    go = threading.Event()
    with held(replicas):
        first._thread.send(lambda: go.wait(60))
        answers = [replicas.submit(request(text, 30)) for text in TEXTS]
        broken(last)
    last.drain()  # until it has moved what it had not begun
    assert first.stats().num_waiting == CFG.max_queue + 1
    answers[5].cancel()
    go.set()
    assert answers[5].result(60).finish_reason == "cancelled"
    assert answers[5].result(60).tokens == ()
    assert [len(answers[index].result(60).tokens) for index in (0, 2, 4)] == [30] * 3


def test_a_request_that_is_cancelled_while_it_is_moved_ends_at_the_other_replica(replicas):
    last = replicas._engines[1]
    with replicas._choosing:  # so that nothing is moved yet
        with held(replicas):
            answers = [last.submit(request(text, 30)) for text in "abc"]
            broken(last)
        with last._changed:
            assert last._changed.wait_for(lambda: last.error is not None, 60)
        answers[2].cancel()
    assert answers[2].result(60).finish_reason == "cancelled"
    assert answers[2].result(60).tokens == ()
    last.drain()
    assert (replicas.stats().num_moved, replicas.stats().num_lost) == (1, 2)


def test_where_no_replica_is_left_those_that_wait_fail_with_both_reasons(replicas):
    first, last = replicas._engines
    broken(first)
    assert isinstance(outcome(first.submit(request())), EngineError)
    with held(replicas):
        answers = [replicas.submit(request(text)) for text in "abc"]
        broken(last)
    found = [outcome(answer) for answer in answers]
    assert [one.where for one in found] == [None, None, "replica 1 of 2"]
    assert "failed before it began the request, and no other took it: a step" in found[2].what
    replicas.drain()
    assert replicas.stats().num_lost == 4
