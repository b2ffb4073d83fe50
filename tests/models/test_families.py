"""The families of the catalogue: as many parameters as published, and toys that run and learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import find_config, from_json, to_json
from axcore.errors import ConfigError
from axcore.layers import DotProductAttention, FeedForward, MoE, RoPE
from axcore.models import TiedHead, llama2, llama3, mistral, mixtral, qwen2
from axcore.module import count_params, functional

PUBLISHED = {
    (llama2, "7b"): 6_738_415_616,
    (llama2, "13b"): 13_015_864_320,
    (llama2, "70b"): 68_976_648_192,
    (llama3, "8b"): 8_030_261_248,
    (llama3, "70b"): 70_553_706_496,
    (mistral, "7b"): 7_241_732_096,
    (mixtral, "8x7b"): 46_702_792_704,
    (mixtral, "8x22b"): 140_620_634_112,
    (qwen2, "0.5b"): 494_032_768,
    (qwen2, "1.5b"): 1_543_714_304,
    (qwen2, "7b"): 7_615_616_512,
    (qwen2, "72b"): 72_706_203_648,
}
FAMILIES = (llama2, llama3, mistral, mixtral, qwen2)


def called(family):
    return family.__name__


@pytest.mark.parametrize(
    ("family", "size"), PUBLISHED, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_family_has_as_many_parameters_as_published(family, size):
    assert count_params(family(size).build().param_specs()) == PUBLISHED[family, size]


@pytest.mark.parametrize("family", FAMILIES, ids=called)
@pytest.mark.quick_one_in(10)
def test_a_toy_lowers_its_loss_by_its_gradient(family):
    model = family("toy").build()
    state = jax.jit(model.init)(jax.random.key(0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 264, (2, 16)))
    batch = {
        "tokens": tokens,
        "targets": jnp.roll(tokens, -1, axis=1),
        "positions": jnp.broadcast_to(jnp.arange(16), tokens.shape),
        "segment_ids": jnp.ones(tokens.shape, jnp.int32),
        "loss_weights": jnp.ones(tokens.shape, jnp.float32),
    }

    @jax.jit
    def step(state):
        def loss(state):
            (total, weight), _ = functional(model, state, batch, training=True)
            return total / weight

        value, gradients = jax.value_and_grad(loss)(state)
        return value, jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, state, gradients)

    before, state = step(state)
    after, _ = step(state)
    assert after < before


@pytest.mark.parametrize("family", FAMILIES, ids=called)
def test_a_config_survives_being_saved_and_loaded(family):
    assert from_json(to_json(family("toy"))) == family("toy")


@pytest.mark.parametrize("family", FAMILIES, ids=called)
def test_an_unknown_size_names_those_there_are(family):
    with pytest.raises(ConfigError, match=rf"{family.__name__} has no size '9t'; known: .*toy"):
        family("9t")


def nodes(cfg, cls):
    return [found.node for found in find_config(cfg, cls)]


def test_what_tells_the_families_apart():
    assert {node.theta for node in nodes(llama2("7b"), RoPE)} == {10_000}
    assert {node.theta for node in nodes(llama3("8b"), RoPE)} == {500_000}
    assert {node.window for node in nodes(llama3("8b"), DotProductAttention)} == {None}
    assert {node.window for node in nodes(mistral("7b"), DotProductAttention)} == {(4095, 0)}
    assert [node.has_bias for node in (qwen2("7b").decoder.stack.layer.attention.linear,)] == [True]
    assert nodes(qwen2("0.5b"), TiedHead)
    assert not nodes(qwen2("7b"), TiedHead)


def test_every_feed_forward_of_mixtral_is_an_expert_of_eight():
    cfg = mixtral("8x7b")
    (moe,) = nodes(cfg, MoE)
    assert (moe.num_experts, moe.top_k) == (8, 2)
    assert nodes(cfg, FeedForward) == [moe.expert]
