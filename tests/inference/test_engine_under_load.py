"""A request's tokens are those that it gets alone, whatever else an engine does meanwhile."""

import random
import time

import attrs
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.data import ByteTokenizer
from axcore.inference import Engine, EngineConfig, Request, Sampling
from axcore.models import transformer
from axcore.module import functional

TOKENIZER = ByteTokenizer.Config().build()
LONGEST = 64

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    cfg = transformer(vocab_size=264, dim=16, num_layers=2, num_heads=2, hidden_dim=16)
    built = cfg.build()
    return built, built.init(0)


def opened(model, **values):
    sizes = {"max_rows": 4, "max_length": LONGEST, "page_size": 8, "step_tokens": 40}
    return Engine(*model, TOKENIZER, EngineConfig(**{**sizes, **values}))


@pytest.fixture(scope="module")
def alone(model):
    """What a request gets from an engine that has no other, and shares nothing."""
    found = {}
    with opened(model, max_rows=1, shares_prefixes=False, tokens_per_call=1) as engine:

        def answer(request):
            if request not in found:
                result = engine.submit(request).result(60)
                found[request] = (result.text, result.tokens, result.finish_reason)
            return found[request]

        yield answer


def random_request(rng, number):
    common = list(b"to be or not to be, that is the question")
    keep = rng.randint(0, len(common))
    prompt = common[:keep] + [rng.randrange(97, 123) for _ in range(rng.randint(1, 8))]
    sampling = rng.choice(
        (
            Sampling(temperature=0),
            Sampling(temperature=1.5),
            Sampling(temperature=1.0, top_p=0.9, top_k=40),
            Sampling(temperature=1.0, presence_penalty=0.5, repetition_penalty=1.2),
        )
    )
    return Request(
        prompt=tuple(prompt),
        max_tokens=rng.randint(1, LONGEST - len(prompt)),
        sampling=sampling,
        seed=number,
        priority=rng.choice((0, 0, 1, -1)),
    )


def test_greedy_answers_follow_the_plain_logits(model):
    prompt = tuple(b"the quick brown fox")
    with opened(model) as engine:
        request = Request(prompt=prompt, max_tokens=12, sampling=Sampling(temperature=0))
        drawn = [token.id for token in engine.submit(request).result(60).tokens]
    logits, _ = functional(*model, jnp.asarray([[*prompt, *drawn]]), method="logits")
    rows = np.array(logits[0, len(prompt) - 1 : -1])
    rows[:, [TOKENIZER.bos_id, TOKENIZER.pad_id]] = -np.inf
    rows[:, TOKENIZER.vocab_size :] = -np.inf
    assert drawn == rows.argmax(axis=1).tolist()


@pytest.mark.parametrize("pages", [10, 64, None])
def test_answers_under_load_are_those_computed_alone(model, alone, pages):
    rng = random.Random(3)
    requests = [random_request(rng, number) for number in range(24)]
    sizes = {"page_size": None} if pages is None else {"num_pages": pages}
    with opened(model, **sizes) as engine:
        answers = []
        for request in requests:
            answers.append(engine.submit(request))
            if rng.random() < 0.2:
                rng.choice(answers).cancel()
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.02)
        together = [answer.result(120) for answer in answers]
        stats = engine.stats()
        assert stats.pages_used == stats.num_running == stats.num_waiting == 0
        assert stats.num_preemptions > 0 or pages != 10
        assert (stats.num_cached_prompt_tokens > 0) == (pages is not None)
    num_whole = 0
    for request, found in zip(requests, together, strict=True):
        text, tokens, reason = alone(request)
        assert found.tokens == tokens[: len(found.tokens)]
        if found.finish_reason != "cancelled":
            assert (found.text, found.tokens, found.finish_reason) == (text, tokens, reason)
            num_whole += 1
    assert num_whole > 12


def test_fixed_shapes_give_the_same_bits_whatever_else_runs(model):
    rng = random.Random(5)
    requests = [
        attrs.evolve(random_request(rng, number), num_logprobs=3, priority=0)
        for number in range(10)
    ]
    sizes = {"fixed_shapes": True, "step_tokens": 20, "tokens_per_call": 3}
    with opened(model, **sizes) as engine:
        alone = [engine.submit(request).result(60).tokens for request in requests]
        shuffled = rng.sample(requests, len(requests))
        answers = {request: engine.submit(request) for request in shuffled}
        together = [answers[request].result(60).tokens for request in requests]
        stats = engine.stats()
    assert together == alone
    assert stats.num_cached_prompt_tokens > 0
    assert stats.num_preemptions == 0
