"""What an engine makes of a trained state: the numbers that layers compute with, array by array."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_pairs import MODELS
from rounding import assert_same_to_rounding

from axcore.config import evolve
from axcore.data import ByteTokenizer
from axcore.errors import EngineError
from axcore.inference import Engine, EngineConfig, Request, Sampling
from axcore.inference.cached_model import CachedModel, _split
from axcore.inference.weights import WeightConversion
from axcore.layers import KVCacheConfig
from axcore.models import transformer
from axcore.modifiers import NAMED_WEIGHTS, AdapterSlots, changes_compute_dtype, for_serving
from axcore.module import DTypes, functional, restacked
from axcore.ops import KernelPolicy, use_policy
from axcore.parallel import make_mesh
from axcore.plugins import Hardware

CACHE_CONFIG = KVCacheConfig(num_rows=2, capacity=16, max_length=13)
HALF = DTypes(param="float32", compute="bfloat16")
TOKENS = jnp.asarray([[5, 6, 7], [9, 8, 7]], jnp.int32)
MATRICES = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"decode_matmul": "portable"})
"""Of portable code, which has no use for panels."""
TEXTS = transformer(vocab_size=264, dim=64, num_layers=6, num_heads=2, hidden_dim=256)
SIZES = EngineConfig(
    max_num_seqs=1, max_length=32, max_num_batched_tokens=17, sampler_kinds=("greedy",)
)
REQUEST = Request(prompt=(65, 66), max_tokens=6, sampling=Sampling(temperature=0), ignores_end=True)


def half(family):
    return evolve(MODELS[family](), dtypes=HALF).build()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral", "mixtral"])
def test_weights_are_cast_once_to_what_layers_compute_in(family):
    model = half(family)
    state = model.init(0)
    with use_policy(MATRICES):
        cached = CachedModel(model, state, CACHE_CONFIG, compute="bfloat16")
    specs = for_serving(model.config, CACHE_CONFIG).build().param_specs()
    whole = restacked(state, model.param_specs(), _split(specs, lambda one: not one.is_buffer)[0])
    kept = jax.tree.leaves(cached.weights)
    assert sum(one.nbytes for one in kept) < 0.55 * sum(
        one.nbytes for one in jax.tree.leaves(whole)
    )
    zero, size = jnp.zeros(2, jnp.int32), jnp.full(2, 3, jnp.int32)
    with use_policy(MATRICES):
        found, expected = (
            cached.extend(weights, cached.empty_caches(), TOKENS, zero, size)[0]
            for weights in (cached.weights, whole)
        )
    assert_same_to_rounding(found, expected, through="bfloat16")
    plain = functional(model, state, TOKENS, method="logits")[0]
    np.testing.assert_allclose(found, plain[:, -1], atol=0.05)


def test_what_a_layer_reads_wide_stays_wide():
    cached = CachedModel(half("mixtral"), half("mixtral").init(0), CACHE_CONFIG, compute="bfloat16")
    found = jax.tree_util.tree_flatten_with_path(cached.weights)[0]
    wide = {jax.tree_util.keystr(path) for path, leaf in found if leaf.dtype == jnp.float32}
    named = {jax.tree_util.keystr(path) for path, _ in found}
    assert wide == {name for name in named if "norm" in name or "router" in name} != set()


def test_it_is_known_which_models_a_cpu_widens():
    cpu, other = Hardware.parse("cpu-1"), Hardware.parse("trn2-16")
    cfg = half("mistral").config
    assert changes_compute_dtype(cfg, cpu)
    assert not changes_compute_dtype(cfg, other)
    assert not changes_compute_dtype(MODELS["mistral"](), cpu)


@pytest.mark.slow
def test_a_cpu_computes_in_float32_what_was_trained_in_16_bits():
    model = half("mistral")
    state = model.init(0)
    cached = CachedModel(model, state, CACHE_CONFIG)
    assert {leaf.dtype for leaf in jax.tree.leaves(cached.weights)} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(cached.empty_caches())} == {jnp.dtype("float32")}
    zero, size = jnp.zeros(2, jnp.int32), jnp.full(2, 3, jnp.int32)
    found, _ = cached.extend(cached.weights, cached.empty_caches(), TOKENS, zero, size)
    whole = MODELS["mistral"]().build()
    plain = functional(whole, state, TOKENS, method="logits")[0]
    np.testing.assert_allclose(found, plain[:, -1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", [None, "int8"])
def test_room_for_adapters_leaves_weights_where_they_are(weights):
    model = TEXTS.build()
    plain, roomy = (
        CachedModel(
            model, None, CACHE_CONFIG, quantization=weights and NAMED_WEIGHTS[weights], adapters=one
        )
        for one in (None, AdapterSlots(num_adapters=2, rank=4))
    )
    places, with_room = (
        {
            jax.tree_util.keystr(path)
            for path, _ in jax.tree.leaves_with_path(one.conversion.abstract)
        }
        for one in (plain, roomy)
    )
    assert places < with_room
    assert all("['adapters_" in place for place in with_room - places)


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("mesh", [None, {"model": 2}], ids=["device", "mesh"])
@pytest.mark.quick_one_in(3)
def test_programs_are_lowered_for_what_is_made(weights, mesh):
    model = TEXTS.build()
    options = {
        "mesh": mesh and make_mesh(mesh, jax.devices()[:2]),
        "quantization": weights and NAMED_WEIGHTS[weights],
        "adapters": AdapterSlots(num_adapters=2, rank=4),
    }
    cached = CachedModel(model, None, CACHE_CONFIG, **options)
    made = cached.weights_of(jax.device_get(model.init(0)))
    jax.tree.map(
        lambda one, other: (
            (one.shape, one.dtype, one.sharding) == (other.shape, other.dtype, other.sharding)
            or pytest.fail(f"{one} is not {other.sharding}")
        ),
        cached.conversion.abstract,
        made,
    )


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, "int8"])
def test_new_weights_take_the_place_of_old_ones_array_by_array(weights, monkeypatch):
    model = evolve(TEXTS, dtypes=HALF).build()
    cfg = evolve(SIZES, weights=weights, compute="bfloat16")
    engine = Engine(model, model.init(0), ByteTokenizer.Config().build(), cfg)
    with engine:
        engine.submit(REQUEST).result(60)
        parts = engine._programs.weights._conversion
        kept = sum(leaf.nbytes for leaf in jax.tree.leaves(engine._programs.weights.value))
        state = jax.device_get(model.init(1))
        gc.collect()  # engines of other tests
        before, most = live_bytes(), []
        made = WeightConversion.arrays

        def watched(self, state, **options):
            for one in made(self, state):
                most.append(live_bytes())
                yield one

        monkeypatch.setattr(WeightConversion, "arrays", watched)
        engine.replace_weights(state)
        assert max(most) - before <= parts.replacement_bytes + 1024 < kept / 3
        gc.collect()
        assert live_bytes() == before
        found = engine.submit(REQUEST).result(60).tokens
    with Engine(model, model.init(1), ByteTokenizer.Config().build(), cfg) as engine:
        assert engine.submit(REQUEST).result(60).tokens == found


def live_bytes():
    return sum(array.nbytes for array in jax.live_arrays())


def test_an_engine_whose_new_weights_came_in_part_answers_no_more(monkeypatch):
    model = TEXTS.build()
    made = WeightConversion.arrays

    def cut(self, state, **options):
        yield next(made(self, state))
        raise MemoryError("no room")

    with Engine(model, model.init(0), ByteTokenizer.Config().build(), SIZES) as engine:
        monkeypatch.setattr(WeightConversion, "arrays", cut)
        with pytest.raises(EngineError, match="taken over in part, and then failed: no room"):
            engine.replace_weights(model.init(1))
        with pytest.raises(EngineError, match="taken over in part"):
            engine.submit(REQUEST)
