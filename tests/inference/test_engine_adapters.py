"""Requests of one engine choose among adapters, which come and go while it answers."""

import functools

import jax
import pytest

from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import Engine, EngineConfig, Request, RequestError, Sampling
from axcore.inference.adapters import Adapter
from axcore.layers import adapters_of, merge_adapters, with_adapters
from axcore.models import transformer
from axcore.modifiers import LoRA
from axcore.plugins import Hardware

TOKENIZER = ByteTokenizer.Config().build()
CFG = transformer(vocab_size=264, dim=16, num_layers=1, num_heads=2, hidden_dim=16)
MODEL = CFG.build()
PROMPT = tuple(b"the prompt of all of them")
SIZES = {"max_num_seqs": 4, "max_length": 48, "max_num_batched_tokens": 32, "num_decode_steps": 1}


@functools.cache
def state(seed):
    return MODEL.init(seed)


def adapter(seed):
    cfg = LoRA(rank=4, alpha=8.0).apply(CFG, Hardware.parse("cpu-1"))
    fresh = adapters_of(cfg.build(), cfg.build().init(seed))
    keys = jax.random.split(jax.random.key(seed), len(fresh))
    sampled = zip(fresh.items(), keys, strict=True)
    return Adapter(cfg, {name: jax.random.normal(key, a.shape) for (name, a), key in sampled})


def merged(one, state):
    module = one.cfg.build()
    return merge_adapters(module, with_adapters(module, state, one.arrays))


def request(name=None):
    sampling = Sampling(temperature=0)
    return Request(prompt=PROMPT, max_tokens=8, sampling=sampling, adapter=name, ignores_end=True)


def alone(state):
    with Engine(MODEL, state, TOKENIZER, EngineConfig(**SIZES)) as engine:
        return engine.submit(request()).result(60).tokens


@pytest.mark.slow
def test_each_request_is_answered_by_the_adapter_that_it_names():
    one, two = adapter(1), adapter(2)
    expected = {"one": alone(merged(one, state(0))), "two": alone(merged(two, state(0)))}
    assert len({alone(state(0)), *expected.values()}) == 3
    cfg = EngineConfig(**SIZES, num_adapters=2, adapter_rank=4)
    with Engine(MODEL, state(0), TOKENIZER, cfg) as engine:
        engine.add_adapter("one", one)
        engine.add_adapter("two", two)
        with pytest.raises(ConfigError, match="room for 2 adapters, and all are in use"):
            engine.add_adapter("three", one)
        names = ("one", "two", None, "two", "one")
        answers = [engine.submit(request(name)) for name in names]
        found = {name: answer.result(60) for name, answer in zip(names, answers, strict=True)}
        for name in ("one", "two"):
            assert found[name].tokens == expected[name]
        assert found[None].tokens == alone(state(0))
        with pytest.raises(RequestError, match="there is no adapter 'three'"):
            engine.submit(request("three"))
        late = engine.submit(request("one"))
        engine.remove_adapter("one")
        assert late.result(60).tokens == expected["one"]
        with pytest.raises(RequestError, match="there is no adapter 'one'"):
            engine.submit(request("one"))
        engine.add_adapter("three", one)
        engine.replace_weights(state(1))
        replaced = engine.submit(request("three")).result(60)
        assert replaced.tokens == alone(merged(one, state(1)))
        assert replaced.num_cached_prompt_tokens == 0
        with pytest.raises(ConfigError, match="no adapter 'one'"):
            engine.remove_adapter("one")
