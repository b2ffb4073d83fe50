"""Rings and stores of fewer bits hold to the law of caches, and cost what they are meant to."""

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.value_residual import in_place_of
from cache_law import MORE_ROWS, PAGED, ROOM, assert_splits_change_nothing
from parity_pairs import MODELS

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.errors import ConfigError, ModuleError
from axcore.inference.cached_model import CachedModel
from axcore.layers import Attention, QuantizedStore, TokenInfo
from axcore.layers.attention.key_store import Places
from axcore.modifiers import QuantizedCaches, SlidingCaches, for_serving, with_variant
from axcore.module import DTypes, ParamSpec, functional
from axcore.plugins import Hardware

CPU = Hardware.parse("cpu-1")

WINDOWED = ("gemma2", "gemma3", "gpt_oss", "olmo3")
"""Families some of whose layers have a window, besides `mistral`."""


def sliding(family):
    """A model's config, with rings of 8 tokens at least; texts go round them twice."""
    return SlidingCaches(page_size=2).apply(MODELS[family](), CPU)


@pytest.mark.parametrize("room", [ROOM, PAGED], ids=["rows", "slots"])
def test_a_ring_of_the_window_gives_the_logits_of_the_whole(room):
    assert_splits_change_nothing(sliding("mistral"), room)


def quantized(family, dtype="int8"):
    return QuantizedCaches(dtype=dtype).apply(MODELS[family](), CPU)


BOUNDS = {"int8": 0.02, "float8_e4m3fn": 0.1}
"""Errors of logits in toy models, as parts of the largest logit."""


def test_caches_of_8_bits_give_about_the_logits_of_the_whole_and_any_split_the_same():
    assert_splits_change_nothing(quantized("mistral"), PAGED, bound=BOUNDS["int8"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype", "bound"),
    [
        ("mistral", "float8_e4m3fn", BOUNDS["float8_e4m3fn"]),
        ("llama4_text", "int8", np.inf),
        ("gpt_oss", "int8", np.inf),
    ],
)
def test_caches_of_8_bits_do_so_in_every_family(family, dtype, bound):
    """Where experts are chosen by a maximum, rounding may turn it over: errors have no bound."""
    assert_splits_change_nothing(quantized(family, dtype), MORE_ROWS, bound=bound)


def kept(dtype, x):
    """Returns what a store makes of keys `[tokens, heads, size]`."""
    tokens, heads, size = x.shape
    store = QuantizedStore.Config(
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
def test_8_bits_keep_numbers_to_within_the_stated_bounds(size):
    x = size * jax.random.normal(jax.random.key(0), (64, 3, 48)) ** 3
    largest, error = np.abs(x).max(-1, keepdims=True), lambda dtype: np.abs(kept(dtype, x) - x)
    assert np.all(error("int8") <= largest / 254 * 1.0001)
    assert np.all(error("float8_e4m3fn") <= np.maximum(np.abs(x) / 16, largest / 2**17))
    assert np.any(error("float8_e4m3fn") > np.abs(x) / 20), "the bound is no looser than need be"


def test_a_cache_of_8_bits_takes_half_of_16_and_a_scale():
    cfg = MODELS["mistral"]()
    cfg = evolve(cfg, dtypes=DTypes(compute="bfloat16"))
    narrow = QuantizedCaches().apply(cfg, CPU)
    head_dim = find_config(cfg, Attention)[0].node.head_dim or 16
    share = (head_dim + 4) / (2 * head_dim)
    assert kept_bytes(narrow, ROOM) == share * kept_bytes(cfg, ROOM)


def kept_bytes(cfg, room):
    """Bytes of the caches of a model."""
    specs = jax.tree.leaves(
        for_serving(cfg, room).build().param_specs(), is_leaf=lambda x: isinstance(x, ParamSpec)
    )
    kept = [spec.abstract for spec in specs if spec.is_buffer]
    return sum(array.size * array.dtype.itemsize for array in kept)


def test_rings_do_not_grow_with_the_texts():
    short, long = (attrs.evolve(ROOM, capacity=capacity) for capacity in (16, 4096))
    plain, ring = MODELS["mistral"](), sliding("mistral")
    assert kept_bytes(ring, long) == kept_bytes(ring, short) == kept_bytes(plain, short) // 2
    assert kept_bytes(plain, long) == 256 * kept_bytes(plain, short)


def test_rings_belong_to_rows_and_pages_to_nobody():
    """So prefixes are shared among pages only."""
    state = MODELS["mistral"]().build().init(0)
    for cfg, of_nobody in ((MODELS["mistral"](), True), (sliding("mistral"), False)):
        assert CachedModel(cfg.build(), state, PAGED).keeps_pages_only == of_nobody


def test_a_call_of_more_tokens_than_a_ring_has_room_for_is_refused():
    cached = CachedModel(sliding("mistral").build(), MODELS["mistral"]().build().init(0), ROOM)
    none = np.zeros(2, np.int32)
    with pytest.raises(ModuleError, match="8 tokens of a row; there is room for 4"):
        cached.extend(cached.weights, cached.empty_caches(), np.ones((2, 8), np.int32), none, none)


def test_a_model_without_a_window_gets_no_rings():
    with pytest.raises(ConfigError, match="no "):
        sliding("llama")


@pytest.mark.slow
@pytest.mark.parametrize("family", WINDOWED)
def test_a_ring_of_the_window_gives_the_logits_of_the_whole_in_every_family(family):
    assert_splits_change_nothing(sliding(family), PAGED)


def test_latent_attention_keeps_its_latents_alone():
    cfg = MODELS["deepseek_v2"]()
    tokens, num_layers, num_heads = ROOM.num_rows * ROOM.capacity, 3, 4
    assert kept_bytes(cfg, ROOM) == 4 * num_layers * tokens * (32 + 8)
    biased = update_config(cfg, {"**.attention.linear.has_bias": True})
    assert kept_bytes(biased, ROOM) == 4 * num_layers * tokens * (32 + 1 + 8)
    mixed = replace_config(cfg, lambda node: hasattr(node, "value_linear"), in_place_of)
    assert kept_bytes(mixed, ROOM) == 4 * num_layers * tokens * num_heads * (16 + 8 + 12)


@pytest.mark.slow
def test_latent_attention_whose_projections_have_a_bias_holds_to_the_law():
    cfg = update_config(MODELS["deepseek_v2"](), {"**.attention.linear.has_bias": True})
    assert_splits_change_nothing(cfg, PAGED)


def shared(family):
    return with_variant(MODELS[family](), "shared_keys")


@pytest.mark.slow
def test_layers_that_share_keys_hold_to_the_law():
    assert_splits_change_nothing(shared("mistral"), PAGED)


def test_layers_that_share_keys_keep_them_once():
    assert kept_bytes(shared("mistral"), PAGED) == kept_bytes(MODELS["mistral"](), PAGED) // 2


@pytest.mark.slow
def test_layers_whose_positions_differ_share_keys_and_no_cache():
    """Gemma 3's local layers turn by another base; its normed keys have weights of each layer."""
    cfg = shared("gemma3")
    assert kept_bytes(cfg, PAGED) == kept_bytes(MODELS["gemma3"](), PAGED)
    assert_splits_change_nothing(cfg, PAGED)
