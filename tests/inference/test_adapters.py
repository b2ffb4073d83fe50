"""Rows of one batch, each with its own adapter, get what the merged model of each gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.errors import ModuleError
from axcore.inference.adapters import NO_ADAPTER, Adapter, factors_of, read_adapter
from axcore.inference.cached_model import CachedModel
from axcore.interop import to_peft
from axcore.layers import KVCacheConfig, adapters_of, merge_adapters, with_adapter, with_adapters
from axcore.models import llama2
from axcore.modifiers import AdapterSlots, LoRA, QuantizedWeights
from axcore.plugins import Hardware

pytestmark = pytest.mark.slow

CPU = Hardware.parse("cpu-1")
CFG = llama2("toy")
MODEL = CFG.build()
CACHE_CONFIG = KVCacheConfig(num_rows=4, capacity=64, max_length=64)
TOKENS = np.random.default_rng(1).integers(0, CFG.vocab_size, (4, 9)).astype(np.int32)
NUMBERS = (1, NO_ADAPTER, 0, 1)


@functools.cache
def base():
    return MODEL.init(0)


def adapter(seed, **options):
    cfg = LoRA(**{"rank": 4, "alpha": 6.0, **options}).apply(CFG, CPU)
    fresh = adapters_of(cfg.build(), cfg.build().init(seed))
    keys = jax.random.split(jax.random.key(seed), len(fresh))
    sampled = zip(fresh.items(), keys, strict=True)
    return Adapter(cfg, {n: 0.2 * jax.random.normal(key, a.shape) for (n, a), key in sampled})


@functools.cache
def adapters():
    return adapter(0), adapter(1, rank=2, targets=("**.attention",))


def logits_of(model, weights, adapters=None):
    size = np.full(4, TOKENS.shape[1], np.int32)
    numbers = None if adapters is None else jnp.asarray(adapters)
    start = (weights, model.empty_caches(), TOKENS, np.zeros(4, np.int32), size)
    return np.asarray(jax.jit(model.step)(*start, adapters=numbers)[0])


def served(**options):
    model = CachedModel(
        MODEL, base(), CACHE_CONFIG, adapters=AdapterSlots(num_adapters=3, rank=4), **options
    )
    weights = model.weights
    for number, one in enumerate(adapters()):
        weights = with_adapter(weights, number, factors_of(one, CACHE_CONFIG))
    return model, weights


def merged(one):
    module = one.cfg.build()
    return merge_adapters(module, with_adapters(module, base(), one.arrays))


def plain_logits(state):
    model = CachedModel(MODEL, state, CACHE_CONFIG)
    return logits_of(model, model.weights)


def test_each_row_is_corrected_as_the_merged_model_of_its_adapter_is():
    found = logits_of(*served(), NUMBERS)
    expected = [*(plain_logits(merged(one)) for one in adapters()), plain_logits(base())]
    for row, number in enumerate(NUMBERS):
        np.testing.assert_allclose(found[row], expected[number][row], atol=2e-4)
    assert np.abs(expected[0] - expected[1]).max() > 0.1


def test_without_numbers_and_without_adapters_the_model_is_as_it_was():
    model, weights = served()
    np.testing.assert_allclose(logits_of(model, weights), plain_logits(base()), atol=1e-5)
    emptied = with_adapter(weights, 1, None)
    again = logits_of(model, emptied, NUMBERS)
    np.testing.assert_allclose(again[3], plain_logits(base())[3], atol=1e-5)
    np.testing.assert_array_equal(again[2], logits_of(model, weights, NUMBERS)[2])


def test_adapters_correct_narrow_weights_too():
    narrow, weights = served(quantization=QuantizedWeights())
    found = logits_of(narrow, weights, NUMBERS)
    wide = logits_of(*served(), NUMBERS)
    assert 0 < np.abs(found - wide).max() < 0.1 * np.abs(wide).max()
    plain = CachedModel(MODEL, base(), CACHE_CONFIG, quantization=QuantizedWeights())
    np.testing.assert_allclose(found[1], logits_of(plain, plain.weights)[1], atol=1e-5)


def test_adapters_are_read_from_a_folder_of_peft(tmp_path):
    for number, one in enumerate(adapters()):
        state = with_adapters(one.cfg.build(), base(), one.arrays)
        to_peft(tmp_path / str(number), one.cfg, state)
        read = factors_of(read_adapter(tmp_path / str(number), CFG), CACHE_CONFIG)
        kept = factors_of(one, CACHE_CONFIG)
        assert read.keys() == kept.keys()
        for path, factors in kept.items():
            for ours, theirs in zip(factors, read[path], strict=True):
                np.testing.assert_allclose(theirs, ours, atol=1e-6)


def test_adapters_that_do_not_fit_are_refused():
    model = CachedModel(MODEL, base(), CACHE_CONFIG, adapters=AdapterSlots(num_adapters=1, rank=3))
    with pytest.raises(ModuleError, match="the adapter has rank 4, and there is room for 3"):
        with_adapter(model.weights, 0, factors_of(adapters()[0], CACHE_CONFIG))
    attention = AdapterSlots(exclude=("**.feed_forward.**", "**.head.**", "**.embedding.**"))
    model = CachedModel(MODEL, base(), CACHE_CONFIG, adapters=attention)
    with pytest.raises(ModuleError, match=r"no layer for adapters at decoder.*feed_forward"):
        with_adapter(model.weights, 0, factors_of(adapters()[0], CACHE_CONFIG))
