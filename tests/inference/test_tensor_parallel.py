"""A model on a mesh gives the logits that it gives on one device, its caches split by heads."""

import jax
import numpy as np
import pytest
from cache_law import CACHE_CONFIG, PAGED, assert_splits_change_nothing
from parity_pairs import MODELS

from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer
from axcore.inference import (
    Draft,
    DraftModel,
    Engine,
    EngineConfig,
    Request,
    Sampling,
    open_engine,
)
from axcore.inference.cached_model import CachedModel
from axcore.parallel import PARAM_RULES, make_mesh, param_shardings

MESH = make_mesh({"model": 2}, jax.devices()[:2])


def on_mesh(model, state):
    return jax.device_put(state, param_shardings(model.param_specs(), PARAM_RULES, MESH))


@pytest.mark.slow
@pytest.mark.parametrize("cache_config", [CACHE_CONFIG, PAGED], ids=["rows", "pages"])
def test_any_split_on_a_mesh_gives_the_logits_of_one_device(cache_config):
    assert_splits_change_nothing(MODELS["mistral"](), cache_config, place=on_mesh)


@pytest.mark.parametrize("cache_config", [CACHE_CONFIG, PAGED], ids=["rows", "pages"])
@pytest.mark.quick_one_in(2)
def test_caches_are_split_by_heads_and_stay_so(cache_config):
    model = MODELS["mistral"]().build()
    cached = CachedModel(model, on_mesh(model, model.init(0)), cache_config)
    zero = np.zeros(cache_config.num_rows, np.int32)
    where = (
        {"page_table": np.zeros((cache_config.num_rows, 4), np.int32)} if cache_config.pages else {}
    )
    empty = cached.empty_caches()
    parts = [leaf.addressable_shards[0].data.shape for leaf in jax.tree.leaves(empty)]
    _, caches = cached.extend(
        cached.weights,
        empty,
        np.ones((cache_config.num_rows, 1), np.int32),
        zero,
        zero + 1,
        **where,
    )
    for part, leaf in zip(parts, jax.tree.leaves(caches), strict=True):
        assert leaf.addressable_shards[0].data.shape == part
        assert part[2] == leaf.shape[2] // 2


def test_one_key_head_is_on_every_device():
    model = update_config(MODELS["mistral"](), {"**.attention.num_kv_heads": 1}).build()
    cached = CachedModel(model, on_mesh(model, model.init(0)), CACHE_CONFIG)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(cached.empty_caches()))


TOKENIZER = ByteTokenizer.Config().build()
SIZES = EngineConfig(
    max_num_seqs=2,
    max_length=32,
    page_size=4,
    max_num_batched_tokens=18,
    batch_size_buckets=(2,),
    num_decode_steps=1,
    sampler_kinds=("greedy",),
)
REQUEST = Request(prompt=tuple(b"any text"), max_tokens=12, sampling=Sampling(temperature=0))


@pytest.fixture(scope="module")
def sampled():
    """What one device samples."""
    model = MODELS["mistral"]().build()
    with Engine(model, model.init(3), TOKENIZER, SIZES) as engine:
        return engine.submit(REQUEST).result(300).tokens


@pytest.mark.slow
def test_an_engine_on_a_mesh_draws_the_tokens_of_one_device(sampled):
    model = MODELS["mistral"]().build()
    with Engine(model, on_mesh(model, model.init(3)), TOKENIZER, SIZES) as engine:
        assert engine.submit(REQUEST).result(300).tokens == sampled


@pytest.mark.slow
def test_a_draft_on_the_mesh_of_its_model_guesses_what_is_drawn(sampled):
    model = MODELS["mistral"]().build()
    draft = Draft(model=model, state=model.init(3), tokenizer=TOKENIZER)
    cfg = evolve(SIZES, speculation=DraftModel(num_tokens=3))
    with Engine(model, on_mesh(model, model.init(3)), TOKENIZER, cfg, draft=draft) as engine:
        assert engine.submit(REQUEST).result(300).tokens == sampled
        stats = engine.stats()
        leaves = jax.tree.leaves([engine._programs.weights.value, engine._programs.caches])
    assert 0 < stats.num_accepted_draft_tokens == stats.num_draft_tokens
    assert stats.num_steps < len(sampled)
    assert {leaf.sharding.device_set == set(MESH.devices.flat) for leaf in leaves} == {True}


@pytest.mark.slow
def test_replicas_of_split_models_compile_all_before_requests_come(sampled):
    model = MODELS["mistral"]().build()
    mesh = make_mesh({"data": 2, "model": 2}, jax.devices()[:4])
    said = []
    with open_engine(model, model.init(3), TOKENIZER, SIZES, mesh=mesh) as replicas:
        replicas.warm_up(lambda *one: said.append(one))
        total = said[0][1]
        assert [(done, of) for done, of, _ in said] == [(i + 1, total) for i in range(total)]
        numbers = [name.rpartition(", replica ")[2] for _, _, name in said]
        assert sorted(numbers) == ["0"] * (total // 2) + ["1"] * (total // 2)
        answers = [engine.submit(REQUEST) for engine in replicas._engines]
        assert [answer.result(300).tokens for answer in answers] == [sampled] * 2
        assert replicas.stats().compilations_after_warm_up == 0
        assert [one.num_steps > 0 for one in replicas.replica_stats()] == [True, True]
