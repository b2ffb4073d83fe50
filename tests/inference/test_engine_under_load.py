"""A request's tokens are those that it gets alone, whatever else an engine does meanwhile."""

import contextlib
import random
import time

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_pairs import MODELS

from axcore.data import ByteTokenizer
from axcore.inference import (
    Draft,
    DraftModel,
    Engine,
    EngineConfig,
    NGramLookup,
    Request,
    Sampling,
)
from axcore.inference.adapters import Adapter
from axcore.layers import adapters_of
from axcore.models import transformer
from axcore.modifiers import KVCache, LoRA
from axcore.module import functional
from axcore.parallel import PARAM_RULES, make_mesh, param_shardings
from axcore.plugins import Hardware

TOKENIZER = ByteTokenizer.Config().build()
LONGEST = 64
CPU = Hardware.parse("cpu-1")

pytestmark = pytest.mark.slow


CFG = transformer(vocab_size=264, dim=16, num_layers=2, num_heads=2, hidden_dim=16)
MESH = make_mesh({"model": 2}, jax.devices()[:2])


def on_mesh(model, state):
    return jax.device_put(state, param_shardings(model.param_specs(), PARAM_RULES, MESH))


@pytest.fixture(scope="module")
def model():
    built = CFG.build()
    return built, built.init(0)


def opened(model, draft=None, **values):
    sizes = {"max_num_seqs": 4, "max_length": LONGEST, "page_size": 8, "max_num_batched_tokens": 40}
    return Engine(*model, TOKENIZER, EngineConfig(**{**sizes, **values}), draft=draft)


@contextlib.contextmanager
def answered_alone(model, adapters=(), **values):
    """What a request gets from an engine without others, sharing or draft tokens."""
    found = {}
    sizes = {"max_num_seqs": 1, "enable_prefix_caching": False, "num_decode_steps": 1}
    with opened(model, **sizes, **values) as engine:
        for name, adapter in adapters:
            engine.add_adapter(name, adapter)

        def answer(request):
            if request not in found:
                result = engine.submit(request).result(60)
                found[request] = (result.text, result.tokens, result.finish_reason)
            return found[request]

        yield answer


@pytest.fixture(scope="module")
def alone(model):
    with answered_alone(model) as answer:
        yield answer


def random_request(rng, number, adapters=(None,)):
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
        adapter=rng.choice(adapters),
    )


def test_greedy_answers_follow_the_plain_logits(model):
    prompt = tuple(b"the quick brown fox")
    with opened(model) as engine:
        request = Request(prompt=prompt, max_tokens=12, sampling=Sampling(temperature=0))
        sampled = [token.id for token in engine.submit(request).result(60).tokens]
    logits, _ = functional(*model, jnp.asarray([[*prompt, *sampled]]), method="logits")
    rows = np.array(logits[0, len(prompt) - 1 : -1])
    rows[:, [TOKENIZER.bos_id, TOKENIZER.pad_id]] = -np.inf
    rows[:, TOKENIZER.vocab_size :] = -np.inf
    assert sampled == rows.argmax(axis=1).tolist()


def answers_under_load(engine, requests, rng):
    """Returns what requests get that come at any time, while some are cancelled."""
    answers = []
    for request in requests:
        answers.append(engine.submit(request))
        if rng.random() < 0.2:
            rng.choice(answers).cancel()
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.02)
    found = [answer.result(120) for answer in answers]
    stats = engine.stats()
    assert stats.pages_used == stats.num_running == stats.num_waiting == 0
    return found, stats


def assert_same(requests, together, alone):
    """Compares answers; those that were cancelled, as far as they came."""
    num_whole = 0
    for request, found in zip(requests, together, strict=True):
        text, tokens, reason = alone(request)
        assert found.tokens == tokens[: len(found.tokens)]
        if found.finish_reason != "cancelled":
            assert (found.text, found.tokens, found.finish_reason) == (text, tokens, reason)
            num_whole += 1
    assert num_whole > len(requests) // 2


@pytest.mark.every_case
@pytest.mark.parametrize("pages", [10, 64, None])
def test_answers_under_load_are_those_computed_alone(model, alone, pages):
    rng = random.Random(3)
    requests = [random_request(rng, number) for number in range(24)]
    sizes = {"page_size": None} if pages is None else {"num_pages": pages}
    with opened(model, **sizes) as engine:
        together, stats = answers_under_load(engine, requests, rng)
    assert stats.num_preemptions > 0 or pages != 10
    assert (stats.num_cached_prompt_tokens > 0) == (pages is not None)
    assert_same(requests, together, alone)


def adapter(seed):
    cfg = LoRA(rank=4, alpha=8.0).apply(CFG, CPU)
    fresh = adapters_of(cfg.build(), cfg.build().init(seed))
    keys = jax.random.split(jax.random.key(seed), len(fresh))
    sampled = zip(fresh.items(), keys, strict=True)
    return Adapter(cfg, {name: jax.random.normal(key, a.shape) for (name, a), key in sampled})


def test_answers_by_adapters_under_load_are_those_computed_alone(model):
    rng = random.Random(4)
    adapters = tuple((name, adapter(seed)) for seed, name in enumerate(("one", "two")))
    requests = [random_request(rng, number, (None, "one", "two")) for number in range(24)]
    cache_config = {"num_adapters": 2, "adapter_rank": 4}
    with opened(model, num_pages=12, **cache_config) as engine:
        for name, one in adapters:
            engine.add_adapter(name, one)
        together, stats = answers_under_load(engine, requests, rng)
    assert stats.num_cached_prompt_tokens > 0
    with answered_alone(model, adapters, **cache_config) as alone:
        assert_same(requests, together, alone)
        other = [alone(attrs.evolve(one, adapter=None)) for one in requests if one.adapter]
        assert other != [alone(one) for one in requests if one.adapter]


@pytest.mark.every_case
@pytest.mark.parametrize(
    "speculation", [NGramLookup(num_tokens=3), DraftModel(num_tokens=3)], ids=["texts", "draft"]
)
def test_guessed_answers_under_load_are_those_computed_alone(model, alone, speculation):
    rng = random.Random(5)
    requests = [random_request(rng, number) for number in range(24)]
    draft = None
    if isinstance(speculation, DraftModel):
        draft = Draft(model=model[0], state=model[0].init(0), tokenizer=TOKENIZER)
    with opened(model, draft, num_pages=12, speculation=speculation) as engine:
        together, stats = answers_under_load(engine, requests, rng)
    assert 0 < stats.num_accepted_draft_tokens <= stats.num_draft_tokens
    assert_same(requests, together, alone)


def test_answers_of_a_recurrent_model_under_load_are_those_computed_alone():
    rng = random.Random(6)
    built = MODELS["mamba2"]().build()
    recurrent = built, built.init(0)
    requests = [random_request(rng, number) for number in range(16)]
    with opened(recurrent) as engine:
        together, stats = answers_under_load(engine, requests, rng)
    assert stats.num_cached_prompt_tokens == 0, "states belong to rows"
    with answered_alone(recurrent) as alone:
        assert_same(requests, together, alone)


def test_answers_on_a_mesh_under_load_are_those_computed_alone_on_one_device(model, alone):
    rng = random.Random(7)
    requests = [random_request(rng, number) for number in range(16)]
    built, state = model
    with opened((built, on_mesh(built, state)), num_pages=12) as engine:
        together, _ = answers_under_load(engine, requests, rng)
    assert_same(requests, together, alone)


@pytest.mark.every_case
@pytest.mark.parametrize(
    "cfg", [CFG, KVCache(dtype="int8").apply(CFG, CPU)], ids=["float32", "int8"]
)
def test_fixed_shapes_give_the_same_bits_whatever_else_runs(cfg):
    """With caches of 8 bits, too, where another order of sums may lead to another rounding."""
    rng, built = random.Random(5), cfg.build()
    model = built, built.init(0)
    requests = [
        attrs.evolve(random_request(rng, number), num_logprobs=3, priority=0)
        for number in range(10)
    ]
    sizes = {"fixed_shapes": True, "max_num_batched_tokens": 20, "num_decode_steps": 3}
    with opened(model, **sizes) as engine:
        alone = [engine.submit(request).result(60).tokens for request in requests]
        shuffled = rng.sample(requests, len(requests))
        answers = {request: engine.submit(request) for request in shuffled}
        together = [answers[request].result(60).tokens for request in requests]
        stats = engine.stats()
    assert together == alone
    assert stats.num_cached_prompt_tokens > 0
    assert stats.num_preemptions == 0
