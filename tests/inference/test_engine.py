"""What an engine does with requests, by a model whose next token depends on the last alone."""

import asyncio
import gc
import itertools
import queue
import re
import threading
import time
import weakref

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from held_engines import held
from next_letter import NextLetter

from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import (
    Draining,
    Engine,
    EngineConfig,
    EngineError,
    NGramLookup,
    QueueFull,
    Request,
    RequestError,
    Sampling,
)
from axcore.inference.config import batch_buckets
from axcore.inference.grammar import regex
from axcore.inference.programs import Programs
from axcore.inference.sampler import (
    TokenHistory,
    allowed_tokens,
    processed_logits,
    sampling_rows,
    scaled_logits,
)
from axcore.inference.scheduler import Scheduler
from axcore.inference.weights import ServedWeights

TOKENIZER = ByteTokenizer.Config().build()
GREEDY = Sampling(temperature=0)
LONGEST = 32
ALPHABET = "abcdefghij"


MODEL = NextLetter.Config(vocab_size=TOKENIZER.vocab_size).build()


def chain(text, *, ends=True):
    """Returns a state in which each letter is followed by the next one, and the last by an end."""
    table = np.zeros((TOKENIZER.vocab_size,) * 2, np.float32)
    for before, after in itertools.pairwise(text):
        table[ord(before), ord(after)] = 20.0
    table[ord(text[-1]), TOKENIZER.eos_id if ends else ord(text[0])] = 20.0
    return {"table": jnp.asarray(table)}


def request(text="a", max_tokens=20, **values):
    prompt = tuple(text.encode()) if isinstance(text, str) else text
    return Request(prompt=prompt, max_tokens=max_tokens, **{"sampling": GREEDY, **values})


def opened(state=None, **values):
    cfg = {
        "max_num_seqs": 2,
        "max_length": LONGEST,
        "page_size": 4,
        "num_decode_steps": 1,
        **values,
    }
    cfg = {"max_num_batched_tokens": 18, "batch_size_buckets": (cfg["max_num_seqs"],), **cfg}
    return Engine(MODEL, state or chain(ALPHABET), TOKENIZER, EngineConfig(**cfg))


@pytest.fixture(scope="module")
def engine():
    with opened() as engine:
        yield engine


@pytest.fixture(scope="module")
def endless():
    with opened(chain("ab", ends=False)) as engine:
        yield engine


def test_an_answer_ends_at_the_end_token_or_at_its_length(engine):
    whole = engine.submit(request()).result(60)
    assert (whole.text, whole.finish_reason) == ("bcdefghij", "stop")
    assert [token.id for token in whole.tokens] == list(b"bcdefghij")
    short = engine.submit(request(max_tokens=3)).result(60)
    assert (short.text, short.finish_reason) == ("bcd", "length")


def test_an_end_token_is_drawn_as_any_other_where_a_request_says_so(engine):
    answer = engine.submit(request("h", 4, ignores_end=True)).result(60)
    assert [token.id for token in answer.tokens][:3] == [ord("i"), ord("j"), TOKENIZER.eos_id]
    assert (len(answer.tokens), answer.finish_reason) == (4, "length")


def test_a_stop_string_over_several_tokens_ends_the_text_before_it(engine):
    answer = engine.submit(request(stop=("ef", "x")))
    pieces = list(answer)
    assert "".join(piece.text for piece in pieces) == "bcd"
    assert pieces[-1].finish_reason == "stop"
    assert answer.result(60).finish_reason == "stop"


def test_pieces_come_as_they_are_drawn_to_threads_and_event_loops(engine):
    answer = engine.submit(request())

    async def read():
        return [piece.text async for piece in answer]

    texts = asyncio.run(read())
    assert "".join(texts) == "bcdefghij"
    assert len(texts) > 4
    assert [piece.text for piece in answer] == texts


def test_log_probabilities_are_those_of_the_model(engine):
    answer = engine.submit(request("a", 2, num_logprobs=2)).result(60)
    row = np.zeros(TOKENIZER.vocab_size)
    row[ord("b")] = 20
    expected = row - np.log(np.exp(row).sum())
    first = answer.tokens[0]
    np.testing.assert_allclose(first.logprob, expected[ord("b")], atol=1e-6)
    assert [token for token, _ in first.top_logprobs] == [ord("b"), 0]
    np.testing.assert_allclose(first.top_logprobs[1][1], expected[0], rtol=1e-5)


def test_log_probabilities_of_a_prompt_are_those_of_the_model(engine):
    text = "abxbcdefghijabcdefabc" + "a"
    answer = engine.submit(request(text, 1, prompt_logprobs=True)).result(60)
    table = np.asarray(chain(ALPHABET)["table"])
    table = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    expected = [table[ord(before), ord(after)] for before, after in itertools.pairwise(text)]
    assert answer.prompt_logprobs[0] is None
    np.testing.assert_allclose(answer.prompt_logprobs[1:], expected, atol=1e-5)
    rows = [table[ord(before)] for before in text[:-1]]
    for row, top_tokens in zip(rows, answer.prompt_top_logprobs[1:], strict=True):
        ((number, logprob),) = top_tokens
        assert row[number] == row.max()
        np.testing.assert_allclose(logprob, row.max(), atol=1e-5)
    assert answer.text == "b"


def test_as_many_of_the_likeliest_tokens_of_a_prompt_are_returned_as_of_its_answer(engine):
    answer = engine.submit(request("abxbcd", 1, prompt_logprobs=True, num_logprobs=5)).result(60)
    table = np.asarray(chain(ALPHABET)["table"])
    table = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    found = [*answer.prompt_top_logprobs[1:], answer.tokens[0].top_logprobs]
    for before, top_tokens in zip("abxbcd", found, strict=True):
        numbers, logprobs = zip(*top_tokens, strict=True)
        assert len(set(numbers)) == 5
        np.testing.assert_allclose(logprobs, table[ord(before), list(numbers)], atol=1e-5)
        np.testing.assert_allclose(logprobs, np.sort(table[ord(before)])[:-6:-1], atol=1e-5)


SETTINGS = {
    "plain": Sampling(temperature=2.5),
    "full": Sampling(
        temperature=4.0,
        top_k=20,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        logit_bias=((ord("q"), 15.0),),
    ),
    "greedy": Sampling(temperature=0, top_k=2, top_p=0.5),
}


def log_softmax(logits):
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def raw(sampling, text, num_prompt):
    """Returns the log-probabilities of the token after a text by the model alone."""
    return log_softmax(np.asarray(chain(ALPHABET)["table"])[text[-1]])


def processed(sampling, text, num_prompt):
    """Returns them as a token is sampled, by the law: log-softmax of what the sampler takes."""
    prompt, answer = np.split(np.asarray(text), [num_prompt])
    history = TokenHistory(
        jnp.asarray(np.bincount(prompt, minlength=TOKENIZER.vocab_size)[None] > 0),
        jnp.asarray(np.bincount(answer, minlength=TOKENIZER.vocab_size)[None]),
    )
    logits = chain(ALPHABET)["table"][text[-1]][None]
    return log_softmax(np.asarray(sampled_from(logits, sampling_rows([sampling]), history)[0]))


@jax.jit
def sampled_from(logits, rows, history):
    allowed = allowed_tokens(TOKENIZER.vocab_size, TOKENIZER)
    changed = processed_logits(logits, rows, allowed=allowed, history=history)
    return scaled_logits(changed, rows)


def assert_logprobs_are(answer, expected_of):
    """Asserts what the log-probabilities of an answer are, of sampled and of likeliest tokens."""
    text, found = list(answer.request.prompt), answer.result(60)
    for token in (*found.tokens, *([found.end] if found.end else [])):
        expected = expected_of(answer.request.sampling, text, len(answer.request.prompt))
        assert token.logprob == pytest.approx(expected[token.id], abs=2e-5)
        assert token.logprob > -np.inf
        assert len(token.top_logprobs) == answer.request.num_logprobs
        for number, logprob in token.top_logprobs:
            assert logprob == pytest.approx(expected[number], abs=2e-5)
        text.append(token.id)
    assert len(text) - len(answer.request.prompt) == 9


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="one by one", marks=pytest.mark.slow),
        pytest.param({"num_decode_steps": 4}, id="several in a call", marks=pytest.mark.slow),
        pytest.param({"num_decode_steps": 4, "fixed_shapes": True}, id="fixed shapes"),
        pytest.param(
            {"speculation": NGramLookup(num_tokens=2, shortest=1)},
            id="with draft tokens",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_processed_log_probabilities_are_of_the_distribution_that_is_sampled(values):
    """By the law, in rows with and without them, whose settings need different programs."""
    common = {"seed": 4, "ignores_end": True, "num_logprobs": 2}
    kinds = {"raw_logprobs": raw, "processed_logprobs": processed}
    asked = [
        request("abcdefabcd", 9, sampling=sampling, logprobs_mode=mode, **common)
        for sampling in SETTINGS.values()
        for mode in kinds
    ]
    asked.append(attrs.evolve(asked[1], num_logprobs=0))
    asked.append(attrs.evolve(asked[0], num_logprobs=None))
    with opened(max_num_seqs=3, **values) as engine:
        *answers, silent = engine.submit_all(asked)
        for answer in answers:
            assert_logprobs_are(answer, kinds[answer.request.logprobs_mode])
        found = [token.id for token in silent.result(60).tokens]
        assert {token.logprob for token in silent.result(60).tokens} == {None}
        assert found == [token.id for token in answers[0].result(60).tokens]
        assert bool(engine.stats().num_accepted_draft_tokens) == ("speculation" in values)


@pytest.mark.slow
def test_a_grammar_decides_what_is_drawn(endless):
    pytest.importorskip("llguidance")
    digits = request("a", 20, grammar=regex("[0-9]{3}-(ab)+x"), sampling=Sampling())
    free = endless.submit(request("a", 20))
    answers = [endless.submit(attrs.evolve(digits, seed=seed)) for seed in range(3)]
    for answer in answers:
        found = answer.result(60)
        pattern = r"[0-9]{3}-(ab)+x" if found.finish_reason == "stop" else r"[0-9]{3}-(ab)+a?"
        assert re.fullmatch(pattern, found.text)
    assert free.result(60).text == "ba" * 10
    with pytest.raises(RequestError, match="no regular expression that can be followed"):
        endless.submit(request("a", 2, grammar=regex("(")))


def test_a_seed_decides_an_answer_and_another_gives_another(engine):
    def sampled(seed):
        hot = request("z", 8, sampling=Sampling(temperature=1.0), seed=seed, ignores_end=True)
        return [token.id for token in engine.submit(hot).result(60).tokens]

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_a_penalty_counts_what_was_drawn(engine):
    sampling = Sampling(temperature=0, frequency_penalty=2.0, logit_bias=((ord("q"), 21.0),))
    answer = engine.submit(request("z", 3, sampling=sampling)).result(60)
    assert answer.text == "qqq"
    sampling = Sampling(temperature=0, frequency_penalty=2.0, logit_bias=((ord("q"), 3.0),))
    answer = engine.submit(request("z", 3, sampling=sampling)).result(60)
    assert answer.text.count("q") == 2


def test_a_cancelled_answer_ends_and_gives_back_what_it_had(endless):
    answers = [endless.submit(request("a", 31)) for _ in range(5)]
    answers[4].cancel()
    answers[0].cancel()
    assert answers[4].result(60).finish_reason == "cancelled"
    assert answers[0].result(60).finish_reason in ("cancelled", "length")
    assert {answer.result(60).finish_reason for answer in answers[1:4]} == {"length"}
    answers[1].cancel()
    assert endless.stats().pages_used == endless.stats().num_running == 0


def test_a_prompt_that_another_had_is_not_computed_again(endless):
    before = endless.stats().num_cached_prompt_tokens
    first = endless.submit(request("nobody said this", 2)).result(60)
    again = endless.submit(request("nobody said this", 2)).result(60)
    assert again.text == first.text
    assert again.num_cached_prompt_tokens == 15
    assert endless.stats().num_cached_prompt_tokens == before + 15


def test_several_answers_to_one_prompt_read_it_once(endless):
    before = endless.stats()
    prompt = "once upon a time"
    hot = [request(prompt, 3, seed=seed, sampling=Sampling(temperature=9.0)) for seed in range(4)]
    answers = [endless.submit(one) for one in hot]
    tokens = {answer.result(60).tokens for answer in answers}
    assert len(tokens) > 1
    found = endless.stats().num_cached_prompt_tokens - before.num_cached_prompt_tokens
    assert found == 3 * len(prompt)


@pytest.mark.slow
def test_an_engine_that_nobody_holds_is_freed():
    engine = opened()
    assert engine.submit(request("j")).result(60).text == ""
    gone = weakref.ref(engine)
    del engine
    for _ in range(100):
        gc.collect()
        if gone() is None:
            return
        time.sleep(0.1)
    pytest.fail("the engine is still there after 10 s")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"text": ()}, "the prompt has no token"),
        ({"text": (1, 999)}, "the prompt has token 999"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"priority": 2**60}, "priority is 1152921504606846976"),
        ({"text": "a" * 30, "max_tokens": 3}, "30 tokens, and max_tokens is 3: together more"),
        ({"num_logprobs": 21}, "num_logprobs is 21; expected 0 to 20"),
        ({"logprobs_mode": "processed"}, "'processed'; expected 'raw_logprobs' or 'processed_log"),
        ({"logprobs_mode": "processed_logprobs"}, "and num_logprobs is None, which returns none"),
        ({"sampling": Sampling(temperature=-1)}, "temperature is -1"),
    ],
)
def test_a_request_that_can_never_be_answered_is_refused(engine, values, text):
    with pytest.raises(RequestError, match=text):
        engine.submit(request(**values))


def test_a_full_queue_refuses_and_draining_finishes_what_there_is():
    with opened(chain("ab", ends=False), max_num_seqs=1, max_queue=2) as engine:
        with held(engine):
            answers = [engine.submit(request("a", 31)) for _ in range(2)]
            with pytest.raises(QueueFull, match="2 requests wait already"):
                engine.submit(request("a", 31))
        engine.drain()
        assert {answer.result(0).finish_reason for answer in answers} == {"length"}
        with pytest.raises(Draining, match="takes no new requests"):
            engine.submit(request())


def batches(requests, monkeypatch, delays):
    """Returns every batch that a new engine runs for requests that come together."""
    found, schedule = [], Scheduler.schedule

    def watched(scheduler):
        plan = schedule(scheduler)
        found.extend(
            (batch.slots.tolist(), batch.starts.tolist(), batch.sizes.tolist(), batch.length)
            for batch in (plan.prefill, plan.decode)
            if batch is not None
        )
        return plan

    monkeypatch.setattr(Scheduler, "schedule", watched)
    with opened(num_decode_steps=3) as engine:
        state_of = engine._new_request_state

        def late_state_of(completion):
            time.sleep(next(delays))
            return state_of(completion)

        engine.submit(request("cde", 9)).result(60)  # programs are compiled
        found.clear()
        monkeypatch.setattr(engine, "_new_request_state", late_state_of)
        for answer in engine.submit_all(requests):
            answer.result(60)
    monkeypatch.undo()
    return found


def test_batches_of_requests_that_come_together_do_not_depend_on_time(monkeypatch):
    asked = [request(text, 7) for text in ("c", "d" * 20, "e" * 9, "c", "c" * 14, "e" * 9)]
    first = batches(asked, monkeypatch, itertools.repeat(0))
    assert len(first) > 6
    assert batches(asked, monkeypatch, itertools.cycle([0, 0.03, 0.01])) == first


def test_requests_that_come_together_are_taken_all_or_none(endless):
    before = endless.stats().num_prompt_tokens
    with pytest.raises(RequestError, match="max_tokens is 0") as error:
        endless.submit_all([request("a", 3), request("a", 0)])
    assert error.value.where == "requests[1].max_tokens"
    with pytest.raises(RequestError, match=r"1025 requests .* the queue holds 1024"):
        endless.submit_all([request("a", 3)] * 1025)
    assert endless.submit_all([]) == ()
    assert endless.stats().num_prompt_tokens == before
    answers = endless.submit_all([request("a" * size, 3, seed=size) for size in (1, 2, 3)])
    assert [len(answer.request.prompt) for answer in answers] == [1, 2, 3]
    assert [answer.result(60).text for answer in answers] == ["bab"] * 3


class SlowlyCounted(tuple):
    """Tokens whose number an engine's thread has to wait for."""

    asked, go = threading.Event(), threading.Event()

    def __len__(self):
        if threading.current_thread().name == "axcore-engine":
            self.asked.set()
            self.go.wait(60)
        return super().__len__()


def test_draining_waits_for_a_request_that_the_engine_is_just_taking():
    with opened() as engine:
        prompt = SlowlyCounted(TOKENIZER.encode_prompt("a").tolist())
        answer = engine.submit(Request(prompt=prompt, max_tokens=2, sampling=GREEDY))
        assert SlowlyCounted.asked.wait(60)
        threading.Timer(0.2, SlowlyCounted.go.set).start()
        engine.drain()
        assert answer.is_finished


def test_weights_are_replaced_between_steps_and_no_answer_is_lost():
    with opened() as engine:
        answers = [engine.submit(request()) for _ in range(4)]
        engine.replace_weights(chain("axyz"))
        assert engine.submit(request()).result(60).text == "xyz"
        assert {answer.result(60).finish_reason for answer in answers} <= {"stop", "length"}
        with pytest.raises(ConfigError, match=r"differ in type .* table is bfloat16, not float32"):
            engine.replace_weights({"table": jnp.zeros((264, 264), jnp.bfloat16)})


def test_an_error_of_what_the_engine_was_told_to_do_reaches_who_told_it(monkeypatch):
    def fail(self, weights, *, is_partial):
        raise TimeoutError("the device does not answer")

    with opened() as engine:
        monkeypatch.setattr(ServedWeights, "replace", fail)
        with pytest.raises(TimeoutError, match="the device does not answer"):
            engine.replace_weights(chain("ab"))
        assert engine.submit(request()).result(60).text == "bcdefghij"


def test_closing_ends_answers_and_refuses_more():
    engine = opened(chain("ab", ends=False))
    answers = [engine.submit(request("a", 31)) for _ in range(8)]
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="the engine was closed"):
        answers[-1].result(5)
    assert [piece.finish_reason for piece in answers[-1]] == ["error"]
    with pytest.raises(EngineError, match="closed"):
        engine.submit(request())


def test_a_step_that_fails_ends_its_answers_and_the_engine_says_so(monkeypatch):
    def fail(self, call, length):
        raise RuntimeError("device lost")

    with opened() as engine:
        monkeypatch.setattr(Programs, "prefill", fail)
        answer = engine.submit(request())
        with pytest.raises(EngineError, match=r"a step of the engine failed.*device lost"):
            answer.result(60)
        engine.drain()
        with pytest.raises(EngineError, match="device lost"):
            engine.submit(request())
        with pytest.raises(EngineError, match="device lost"):
            engine.replace_weights(chain("ab"))


def of_every_kind(engine):
    """Returns the texts of requests that need every program there is."""
    hot = Sampling(temperature=1.0, top_k=3, presence_penalty=1.0)
    answers = [
        engine.submit(
            request("a" * size, 9, sampling=sampling, num_logprobs=1, prompt_logprobs=size == 4)
        )
        for size in (1, 2, 4, 15, 16, 17, 23, 4)
        for sampling in (GREEDY, hot)
    ]
    return [answer.result(60).text for answer in answers]


def test_nothing_is_compiled_after_warm_up():
    calls = []
    with opened(num_decode_steps=2) as engine:
        engine.warm_up(lambda done, total, name: calls.append((done, total, name)))
        assert [done for done, _, _ in calls] == list(range(1, calls[0][1] + 1))
        of_every_kind(engine)
        assert engine.stats().compilations_after_warm_up == 0


@pytest.mark.slow
def test_a_few_programs_answer_while_the_others_are_compiled_and_no_request_waits_for_one():
    totals, ended = set(), queue.SimpleQueue()
    with opened(num_decode_steps=2, batch_size_buckets=(1, 2), num_pages=12) as engine:
        engine.warm_up(lambda _, total, __: totals.add(total), when_all=ended.put)
        by_few = of_every_kind(engine)
        assert ended.get(timeout=60) is None
        by_all = of_every_kind(engine)
        stats = engine.stats()
        assert (by_few, stats.compilations_after_warm_up) == (by_all, 0)
        engine.warm_up(lambda _, total, __: totals.add(total))
        assert engine.stats().compilations_after_warm_up == 0
    assert len(totals) == 2
    assert min(totals) < max(totals)


def test_closing_an_engine_ends_the_compilation_of_what_is_left():
    ended = queue.SimpleQueue()
    with opened(num_decode_steps=2, batch_size_buckets=(1, 2)) as engine:
        engine.warm_up(when_all=ended.put)
    assert ended.empty()
    assert "axcore-warm-up" not in {thread.name for thread in threading.enumerate()}


def test_several_threads_may_submit_and_read(engine):
    texts = {}

    def ask(letter):
        texts[letter] = engine.submit(request(letter)).result(60).text

    threads = [threading.Thread(target=ask, args=(letter,)) for letter in ALPHABET[:6]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {letter: ALPHABET[place + 1 :] for place, letter in enumerate(ALPHABET[:6])}


@pytest.mark.parametrize("max_num_batched_tokens", [8, 16, 100, 512])
def test_no_call_reads_more_than_max_num_batched_tokens(max_num_batched_tokens):
    shapes = batch_buckets(
        EngineConfig(max_num_batched_tokens=max_num_batched_tokens, max_length=4096)
    )
    for length, rows in zip(shapes.chunk_lengths, shapes.prefill_buckets, strict=True):
        assert length * max(rows) <= max_num_batched_tokens
    assert shapes.chunk_lengths[-1] == max_num_batched_tokens


def test_sizes_that_do_not_fit_together_are_refused():
    with pytest.raises(ConfigError, match="batch_size_buckets end at 1; max_num_seqs is 2"):
        opened(batch_size_buckets=(1,))
    with pytest.raises(ConfigError, match="num_pages is 15; 2 rows of 32 tokens need 16"):
        opened(num_pages=15, fixed_shapes=True, batch_size_buckets=None)
    with pytest.raises(ConfigError, match="max_length is None"):
        opened(max_length=None)
