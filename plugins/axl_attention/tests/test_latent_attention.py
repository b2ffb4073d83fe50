"""Latent attention against its formula, and what it is without its parts."""

import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.latent_attention import LatentAttention

from axcore.config import evolve, find_config
from axcore.errors import ConfigError
from axcore.layers import (
    Attention,
    BatchedLoRALinear,
    KVCacheConfig,
    Linear,
    NoPosition,
    QuantizedLinear,
    RoPE,
    TransformerLayer,
    continued_rows,
    using_adapters,
)
from axcore.modifiers import for_serving, with_variant

DIM, HEADS, OWN, TURNED, VALUE, LATENT = 12, 2, 4, 2, 3, 5


def layer(**fields):
    sizes = {"head_dim": OWN, "rope_dim": TURNED, "value_dim": VALUE, "latent_dim": LATENT}
    return LatentAttention.Config(dim=DIM, num_heads=HEADS, **sizes, **fields).build()


def normed(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def turned(x, positions):
    """RoPE of two dimensions: one pair, one radian a position."""
    angle = positions[:, :, None]
    first, second = x[..., 0], x[..., 1]
    return np.stack(
        [
            first * np.cos(angle) - second * np.sin(angle),
            second * np.cos(angle) + first * np.sin(angle),
        ],
        -1,
    )


def by_hand(state, x, positions):
    """Head by head, in float64, as section 2.1 of the paper."""
    at = lambda name: np.asarray(state[name]["weight"], np.float64)  # noqa: E731
    queries = x
    if "query_latent" in state:
        queries = normed(x @ at("query_latent"), at("query_norm"))
    latent = normed(x @ at("latent"), at("latent_norm"))
    q = (queries @ at("q")).reshape(2, 8, HEADS, OWN + TURNED)
    k = (latent @ at("k")).reshape(2, 8, HEADS, OWN)
    v = (latent @ at("v")).reshape(2, 8, HEADS, VALUE)
    shared = turned((x @ at("shared_k"))[:, :, None, :], positions)
    logits = np.einsum("btnh,bsnh->bnts", q[..., :OWN], k)
    logits += np.einsum("btnh,bsh->bnts", turned(q[..., OWN:], positions), shared[:, :, 0])
    weights = np.exp(logits / np.sqrt(OWN + TURNED)) * np.tril(np.ones((8, 8)))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bnts,bsnv->btnv", weights, v).reshape(2, 8, -1) @ at("out")


@pytest.mark.parametrize("query_latent_dim", [None, 7])
def test_latent_attention_is_its_formula(call, random, state_of, whole, query_latent_dim):
    built = layer(query_latent_dim=query_latent_dim)
    state, x = state_of(built), random(2, 8, DIM)
    np.testing.assert_allclose(
        call(built, state, x, whole), by_hand(state, x, whole.positions), atol=1e-4
    )


def test_without_position_order_before_a_token_does_not_matter(call, random, state_of, whole):
    built = layer(position=NoPosition.Config())
    state, x = state_of(built), random(2, 8, DIM)
    swapped = x[:, [1, 0, 2, 3, 4, 5, 6, 7]]
    np.testing.assert_allclose(
        call(built, state, x, whole)[:, 2:], call(built, state, swapped, whole)[:, 2:], atol=1e-5
    )


def test_sizes_that_are_not_given_have_the_proportions_of_the_paper():
    specs = LatentAttention.Config(dim=32, num_heads=4).build().param_specs()
    shapes = {name: specs[name]["weight"].shape for name in specs}
    assert shapes == {
        "q": (32, 4 * 12),
        "latent": (32, 32),
        "latent_norm": (32,),
        "k": (32, 32),
        "v": (32, 32),
        "shared_k": (32, 4),
        "out": (32, 32),
    }


def test_variant_replaces_every_attention_and_keeps_its_parts():
    attention = Attention.Config(num_heads=4, num_kv_heads=2, position=RoPE.Config(theta=7.0))
    changed = with_variant(TransformerLayer.Config(dim=32, attention=attention), "latent_attention")
    assert not find_config(changed, Attention)
    assert changed.attention.position == attention.position
    with pytest.raises(ConfigError, match="no Attention"):
        with_variant(changed, "latent_attention")


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ConfigError, match="dim is 10, not a multiple of num_heads, 4"):
        LatentAttention.Config(dim=10, num_heads=4).build()


PLAIN, BIASED = Linear.Config(), Linear.Config(has_bias=True)


def adapted(base):
    return BatchedLoRALinear.Config(base=base, num_adapters=2, rank=2)


@pytest.mark.parametrize(
    "linear",
    [PLAIN, BIASED, QuantizedLinear.Config(), adapted(PLAIN), adapted(BIASED)],
)
@pytest.mark.quick_one_in(3)
def test_latents_give_what_keys_in_full_give(call, random, state_of, linear):
    """Also with low-precision weights, or an adapter for each row: they are not at hand."""
    cache_config = KVCacheConfig(num_rows=2, capacity=8, max_length=8)
    latents = for_serving(layer().config, cache_config)
    assert latents.keeps_latents
    x = random(2, 8, DIM)
    info = continued_rows(
        jnp.zeros((2, 8), jnp.int32), jnp.zeros(2, jnp.int32), jnp.asarray([8, 5])
    )
    full, kept = (
        evolve(latents, keeps_latents=keeps, linear=linear).build() for keeps in (False, True)
    )
    state = state_of(full)
    own_room = {"kv_cache": state_of(kept)["kv_cache"]}
    new = info.segment_ids > 0
    with using_adapters(jnp.asarray([1, 0])):
        want = call(full, state, x, info)
        got = call(kept, {**state, **own_room}, x, info)
    np.testing.assert_allclose(got[new], want[new], atol=1e-4)
