"""Attention over chosen keys: what is chosen, among what, and what it is without a choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.latent_attention import LatentAttention
from axl_attention.sparse_attention import IndexedLatentAttention, LightningIndexer

from axcore.config import replace_config
from axcore.errors import ConfigError, ModuleError
from axcore.layers import (
    DotProductAttention,
    GappedCache,
    KVCacheConfig,
    NoCache,
    TokenInfo,
    continued_rows,
    whole_rows,
)
from axcore.modifiers import for_serving
from axcore.module import functional

SIZES = {"dim": 12, "num_heads": 2, "head_dim": 4, "rope_dim": 2, "query_latent_dim": 6}
TIME, TOP_K = 9, 3


def config(top_k=TOP_K, **fields):
    indexer = LightningIndexer.Config(num_heads=8, head_dim=6, top_k=top_k)
    return IndexedLatentAttention.Config(**{**SIZES, "indexer": indexer, **fields})


def tokens(random, rows=2, time=TIME):
    return jnp.asarray(random.standard_normal((rows, time, SIZES["dim"]), np.float32))


@pytest.fixture
def random():
    return np.random.default_rng(3)


def bias_of(layer, state, x):
    """Returns the bias of the indexer, and what its queries are made from."""
    of_queries = functional(layer.query_latent, state["query_latent"], x)[0]
    of_queries = functional(layer.query_norm, state["query_norm"], of_queries)[0]
    bias = functional(layer.indexer, state["indexer"], x, of_queries, whole_rows(x))[0]
    return np.asarray(bias)[:, 0], np.asarray(of_queries, np.float64)


def turned(x, positions):
    """RoPE of two dimensions: one pair, one radian a position."""
    turn = np.exp(1j * positions)[..., None] * (x[..., 0] + 1j * x[..., 1])
    return np.stack([turn.real, turn.imag], -1)


def scores_by_hand(state, x, of_queries):
    """Equation 1 of the report in float64, with the norm of keys and positions."""
    at = lambda name: np.asarray(state[name]["weight"], np.float64)  # noqa: E731
    places = np.arange(TIME)[None, :]
    q = (of_queries @ at("q")).reshape(2, TIME, 8, 6)
    k = x @ at("k")
    k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-6)
    k = (k * at("key_norm") + np.asarray(state["key_norm"]["bias"]))[:, :, None]
    q, k = (np.concatenate([turned(o[..., :2], places), o[..., 2:]], -1) for o in (q, k))
    products = np.maximum(np.einsum("btnh,bsh->btns", q, k[:, :, 0]), 0)
    return np.einsum("btns,btn->bts", products, x @ at("weights"))


def test_the_keys_of_the_highest_scores_are_chosen_among_earlier_ones(random):
    layer, x = config().build(), tokens(random)
    state = layer.init(0)
    bias, of_queries = bias_of(layer, state, x)
    scores = scores_by_hand(state["indexer"], np.asarray(x, np.float64), of_queries)
    for query in range(TIME):
        best = np.argsort(-scores[:, query, : query + 1])[:, :TOP_K]
        for row in range(2):
            seen = np.flatnonzero(bias[row, query, : query + 1] == 0)
            assert sorted(seen) == sorted(best[row])


def test_no_key_outside_of_the_chosen_ones_changes_a_query(random):
    layer, x = config().build(), tokens(random)
    state = layer.init(0)
    chosen = bias_of(layer, state, x)[0][0, -1] == 0
    gradient = jax.grad(lambda x: jnp.sum(layer_output(layer, state, x)[0, -1]))(x)
    is_used = np.abs(np.asarray(gradient[0])).max(-1) > 0
    chosen[-1] = True  # its own queries
    assert is_used.tolist() == chosen.tolist()


def layer_output(layer, state, x, info=None):
    info = whole_rows(x) if info is None else info
    return jax.jit(lambda *args: functional(layer, *args)[0])(state, x, info)


def test_documents_of_a_packed_row_choose_among_their_own_keys(random):
    layer, x = config().build(), tokens(random, rows=1, time=13)
    state = layer.init(0)
    positions = jnp.asarray([[*range(7), *range(5), 0]])
    segments = jnp.asarray([[1] * 7 + [2] * 5 + [0]])
    packed = layer_output(layer, state, x, TokenInfo(positions, segments))
    for part in (slice(0, 7), slice(7, 12)):
        alone = layer_output(layer, state, x[:, part])
        np.testing.assert_allclose(packed[:, part], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("top_k", [TIME, 100])
def test_it_is_latent_attention_where_there_is_nothing_to_choose(random, top_k):
    layer, x = config(top_k).build(), tokens(random)
    state = layer.init(0)
    plain = {name: part for name, part in state.items() if name != "indexer"}
    expected = layer_output(LatentAttention.Config(**SIZES).build(), plain, x)
    np.testing.assert_array_equal(layer_output(layer, state, x), expected)
    assert np.abs(layer_output(config().build(), state, x) - expected).max() > 1e-3


def test_choices_have_no_gradient_and_the_rest_has(random):
    layer, x = config().build(), tokens(random)
    gradient = jax.grad(lambda state: jnp.sum(layer_output(layer, state, x) ** 2))(layer.init(0))
    indexer = gradient.pop("indexer")
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(indexer))
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"query_latent_dim": None}, "query_latent_dim is None"),
        ({"core": DotProductAttention.Config(window=(4, 0))}, "all earlier tokens"),
        ({"core": DotProductAttention.Config(is_causal=False)}, "all earlier tokens"),
        ({"indexer": LightningIndexer.Config(head_dim=1)}, "head_dim is 1, and 2 of it"),
    ],
)
def test_what_an_indexer_cannot_choose_for_is_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        config(**fields).build()


def test_a_cache_with_gaps_is_refused(random):
    gapped = NoCache.Config(layout=GappedCache.Config())
    cfg = replace_config(config(), NoCache, gapped)
    layer = for_serving(cfg, KVCacheConfig(num_rows=2, capacity=16, max_length=16)).build()
    x, none = tokens(random), jnp.zeros(2, jnp.int32)
    info = continued_rows(x[..., 0].astype(jnp.int32), none, none + TIME)
    with pytest.raises(ModuleError, match="has gaps, among which"):
        functional(layer, layer.init(0), x, info)
