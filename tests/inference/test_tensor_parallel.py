"""A model on a mesh gives the logits that it gives on one device, its caches split by heads."""

import jax
import numpy as np
import pytest
from cache_law import PAGED, ROOM, assert_splits_change_nothing
from parity_pairs import MODELS

from axcore.config import update_config
from axcore.data import ByteTokenizer
from axcore.inference import Engine, EngineConfig, Request, Sampling
from axcore.inference.cached_model import CachedModel
from axcore.parallel import PARAM_RULES, make_mesh, param_shardings

MESH = make_mesh({"model": 2}, jax.devices()[:2])


def on_mesh(model, state):
    return jax.device_put(state, param_shardings(model.param_specs(), PARAM_RULES, MESH))


@pytest.mark.slow
@pytest.mark.parametrize("room", [ROOM, PAGED], ids=["rows", "pages"])
def test_any_split_on_a_mesh_gives_the_logits_of_one_device(room):
    assert_splits_change_nothing(MODELS["mistral"](), room, place=on_mesh)


@pytest.mark.parametrize("room", [ROOM, PAGED], ids=["rows", "pages"])
def test_caches_are_split_by_heads_and_stay_so(room):
    model = MODELS["mistral"]().build()
    cached = CachedModel(model, on_mesh(model, model.init(0)), room)
    zero = np.zeros(room.num_rows, np.int32)
    where = {"page_table": np.zeros((room.num_rows, 4), np.int32)} if room.pages else {}
    empty = cached.empty_caches()
    parts = [leaf.addressable_shards[0].data.shape for leaf in jax.tree.leaves(empty)]
    _, caches = cached.extend(
        cached.weights, empty, np.ones((room.num_rows, 1), np.int32), zero, zero + 1, **where
    )
    for part, leaf in zip(parts, jax.tree.leaves(caches), strict=True):
        assert leaf.addressable_shards[0].data.shape == part
        assert part[2] == leaf.shape[2] // 2


def test_one_key_head_is_on_every_device():
    model = update_config(MODELS["mistral"](), {"**.attention.num_kv_heads": 1}).build()
    cached = CachedModel(model, on_mesh(model, model.init(0)), ROOM)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(cached.empty_caches()))


@pytest.mark.slow
def test_an_engine_on_a_mesh_draws_the_tokens_of_one_device():
    model = MODELS["mistral"]().build()
    state = model.init(3)
    cfg = EngineConfig(max_rows=2, max_length=32, page_size=4, step_tokens=18, decode_sizes=(2,))
    request = Request(prompt=tuple(b"any text"), max_tokens=12, sampling=Sampling(temperature=0))

    def drawn(state):
        with Engine(model, state, ByteTokenizer.Config().build(), cfg) as engine:
            return [token.id for token in engine.submit(request).result(300).tokens]

    assert drawn(on_mesh(model, state)) == drawn(state)
