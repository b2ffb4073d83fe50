"""Rings, stores of fewer bits, latents and shared keys cost what they are meant to."""

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.across_layers import with_value_residual
from cache_kinds import int8, rings, shared_keys
from cache_law import CACHE_CONFIG, PAGED
from parity_pairs import MODELS

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.errors import ConfigError, ModuleError
from axcore.inference.cached_model import CachedModel
from axcore.layers import Attention, QuantizedKVStore, TokenInfo
from axcore.layers.attention.kv_store import Places
from axcore.modifiers import for_serving
from axcore.module import DTypes, ParamSpec, functional


def kept(dtype, x):
    """Returns what a store makes of keys `[tokens, heads, size]`."""
    tokens, heads, size = x.shape
    store = QuantizedKVStore.Config(
        num_rows=1,
        row_axis=None,
        num_places=tokens,
        num_kv_heads=heads,
        head_dim=size,
        value_dim=None,
        dtype=dtype,
    ).build()
    at = jnp.arange(tokens)[None]
    info = TokenInfo(at)
    (keys, _, info), _ = functional(
        store, store.init(0), x[None], x[None], Places(at * 0, at), info
    )
    return np.asarray(keys[0], np.float32) * np.asarray(info.scales[0][0])[..., None]


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.quick_one_in(3)
def test_8_bits_keep_numbers_to_within_the_stated_bounds(size):
    x = size * jax.random.normal(jax.random.key(0), (64, 3, 48)) ** 3
    largest, error = np.abs(x).max(-1, keepdims=True), lambda dtype: np.abs(kept(dtype, x) - x)
    assert np.all(error("int8") <= largest / 254 * 1.0001)
    assert np.all(error("float8_e4m3fn") <= np.maximum(np.abs(x) / 16, largest / 2**17))
    assert np.any(error("float8_e4m3fn") > np.abs(x) / 20), "the bound is no looser than need be"


def test_a_cache_of_8_bits_takes_half_of_16_and_a_scale():
    cfg = MODELS["mistral"]()
    cfg = evolve(cfg, dtypes=DTypes(compute="bfloat16"))
    narrow = int8(cfg)
    head_dim = find_config(cfg, Attention)[0].node.head_dim or 16
    share = (head_dim + 4) / (2 * head_dim)
    assert kept_bytes(narrow, CACHE_CONFIG) == share * kept_bytes(cfg, CACHE_CONFIG)


def kept_bytes(cfg, cache_config):
    """Bytes of the caches of a model."""
    specs = jax.tree.leaves(
        for_serving(cfg, cache_config).build().param_specs(),
        is_leaf=lambda x: isinstance(x, ParamSpec),
    )
    kept = [spec.abstract for spec in specs if spec.is_buffer]
    return sum(array.size * array.dtype.itemsize for array in kept)


def test_rings_do_not_grow_with_the_texts():
    short, long = (attrs.evolve(CACHE_CONFIG, call_tokens=4, capacity=size) for size in (16, 4096))
    plain, ring = MODELS["mistral"](), rings(MODELS["mistral"]())
    assert kept_bytes(ring, long) == kept_bytes(ring, short) == kept_bytes(plain, short) // 2
    assert kept_bytes(plain, long) == 256 * kept_bytes(plain, short)


def test_rings_belong_to_rows_and_pages_to_nobody():
    """So prefixes are shared among pages only."""
    state = MODELS["mistral"]().build().init(0)
    for cfg, of_nobody in ((MODELS["mistral"](), True), (rings(MODELS["mistral"]()), False)):
        assert CachedModel(cfg.build(), state, PAGED).keeps_pages_only == of_nobody


def test_a_call_of_more_tokens_than_a_ring_has_room_for_is_refused():
    model = rings(MODELS["mistral"]()).build()
    cached = CachedModel(model, model.init(0), CACHE_CONFIG)
    none = np.zeros(3, np.int32)
    with pytest.raises(ModuleError, match="8 tokens of a row; the cache takes 6"):
        cached.extend(cached.weights, cached.empty_caches(), np.ones((3, 8), np.int32), none, none)


def test_a_model_without_a_window_gets_no_rings():
    with pytest.raises(ConfigError, match="no attention that keeps its own keys has a window"):
        rings(MODELS["llama"]())


def test_latent_attention_keeps_its_latents_alone():
    cfg = MODELS["deepseek_v2"]()
    tokens, num_layers, num_heads = CACHE_CONFIG.num_rows * CACHE_CONFIG.capacity, 3, 4
    assert kept_bytes(cfg, CACHE_CONFIG) == 4 * num_layers * tokens * (32 + 8)
    biased = update_config(cfg, {"**.attention.linear.has_bias": True})
    assert kept_bytes(biased, CACHE_CONFIG) == 4 * num_layers * tokens * (32 + 1 + 8)
    mixed = replace_config(cfg, lambda node: hasattr(node, "value_linear"), with_value_residual)
    assert kept_bytes(mixed, CACHE_CONFIG) == 4 * num_layers * tokens * num_heads * (16 + 8 + 12)


def test_layers_that_share_keys_keep_them_once():
    for cfg in (MODELS["mistral"](), rings(MODELS["mistral"]())):
        assert kept_bytes(shared_keys(cfg), PAGED) == kept_bytes(cfg, PAGED) // 2


@pytest.mark.parametrize("cfg", [MODELS["gemma3"](), rings(MODELS["gemma2"]())])
def test_layers_that_see_other_keys_share_no_cache(cfg):
    """Gemma 3's layers turn keys in their own way; a ring drops what Gemma 2's next layer sees."""
    assert kept_bytes(shared_keys(cfg), PAGED) == kept_bytes(cfg, PAGED)
