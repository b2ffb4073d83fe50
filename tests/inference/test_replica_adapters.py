"""Replicas hold the same adapters: a request is answered by the one that it names, anywhere."""

import jax
import pytest
from held_engines import broken, held

from axcore.data import ByteTokenizer
from axcore.errors import ConfigError, EngineError, ModuleError
from axcore.inference import Engine, EngineConfig, Request, RequestError, Sampling, open_engine
from axcore.inference.adapters import Adapter
from axcore.layers import adapters_of
from axcore.models import transformer
from axcore.modifiers import LoRA
from axcore.parallel import make_mesh
from axcore.plugins import Hardware

TOKENIZER = ByteTokenizer.Config().build()
CFG = transformer(vocab_size=264, dim=16, num_layers=1, num_heads=2, hidden_dim=16)
MODEL = CFG.build()
PROMPT = tuple(b"the prompt of all")
SIZES = EngineConfig(
    max_num_seqs=2,
    max_length=32,
    page_size=8,
    max_num_batched_tokens=32,
    num_decode_steps=1,
    batch_size_buckets=(2,),
    sampler_kinds=("greedy",),
    num_adapters=1,
    adapter_rank=4,
)


def adapter(seed, rank=4):
    cfg = LoRA(rank=rank, alpha=8.0).apply(CFG, Hardware.parse("cpu-1"))
    fresh = adapters_of(cfg.build(), cfg.build().init(seed))
    keys = jax.random.split(jax.random.key(seed), len(fresh))
    sampled = zip(fresh.items(), keys, strict=True)
    return Adapter(cfg, {name: jax.random.normal(key, a.shape) for (name, a), key in sampled})


def request(name=None):
    sampling = Sampling(temperature=0)
    return Request(prompt=PROMPT, max_tokens=6, sampling=sampling, adapter=name, ignores_end=True)


def tokens(engine, name):
    return engine.submit(request(name)).result(60).tokens


@pytest.fixture(scope="module")
def expected():
    """What one engine samples with no adapter, and with each of two under one name."""
    with Engine(MODEL, MODEL.init(0), TOKENIZER, SIZES) as engine:
        found = {None: tokens(engine, None)}
        for seed in (1, 2):
            engine.add_adapter("one", adapter(seed))
            found[seed] = tokens(engine, "one")
    assert len(set(found.values())) == 3
    return found


@pytest.fixture(scope="module")
def replicas():
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    with open_engine(MODEL, MODEL.init(0), TOKENIZER, SIZES, mesh=mesh) as found:
        yield found


@pytest.mark.slow
def test_every_replica_answers_by_the_newest_adapter_of_a_name(replicas, expected):
    for seed in (1, 2, 2):
        replicas.add_adapter("one", adapter(seed))
        with held(replicas):
            answers = [replicas.submit(request(name)) for name in ("one", "one", "one", None)]
            assert [one.num_waiting for one in replicas.replica_stats()] == [2, 2]
        found = [answer.result(60).tokens for answer in answers]
        assert found == [*[expected[seed]] * 3, expected[None]]
        assert [tokens(one, "one") for one in replicas._engines] == [expected[seed]] * 2
    with pytest.raises(ModuleError, match="the adapter has rank 5, and there is room for 4"):
        replicas.add_adapter("one", adapter(3, rank=5))
    with pytest.raises(ConfigError, match="room for 1 adapters, and all are in use"):
        replicas.add_adapter("other", adapter(1))
    assert tokens(replicas, "one") == expected[2]
    replicas.remove_adapter("one")
    for _ in range(2):
        with pytest.raises(RequestError, match="there is no adapter 'one'"):
            replicas.submit(request("one"))
    with pytest.raises(ConfigError, match="there is no adapter 'one'"):
        replicas.remove_adapter("one")


@pytest.mark.slow
def test_an_adapter_that_one_replica_has_no_room_for_is_at_none(replicas, expected):
    first, last = replicas._engines
    last.add_adapter("other", adapter(1))
    with pytest.raises(ConfigError, match="room for 1 adapters, and all are in use"):
        replicas.add_adapter("one", adapter(2))
    with pytest.raises(RequestError, match="there is no adapter 'one'"):
        first.submit(request("one"))
    last.remove_adapter("other")
    replicas.add_adapter("one", adapter(2))
    assert [tokens(one, "one") for one in (first, last)] == [expected[2]] * 2
    replicas.remove_adapter("one")


@pytest.mark.slow
def test_a_request_is_not_moved_to_a_replica_where_its_adapter_was_replaced():
    mesh = make_mesh({"data": 2}, jax.devices()[1:3])
    with open_engine(MODEL, MODEL.init(0), TOKENIZER, SIZES, mesh=mesh) as replicas:
        first, last = replicas._engines
        replicas.add_adapter("one", adapter(1))
        with replicas._choosing:  # so that nothing is moved yet
            with held(replicas):
                answers = [last.submit(request("one")) for _ in range(SIZES.max_num_seqs + 1)]
                broken(last)
            with last._changed:
                assert last._changed.wait_for(lambda: last.error is not None, 60)
            first.add_adapter("one", adapter(2))
        replaced = "no other took it: the adapter 'one' was replaced while the request waited"
        with pytest.raises(EngineError, match=replaced):
            answers[-1].result(60)
        last.drain()
        assert (replicas.stats().num_moved, replicas.stats().num_lost) == (0, 3)
