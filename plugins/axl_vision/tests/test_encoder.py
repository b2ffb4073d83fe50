"""The encoder of pictures, and that what changes a language model's layers changes its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_vision.encoder import NormalizePixels
from axl_vision.models import clip, siglip, vit
from rounding import assert_same_to_rounding

from axcore.config import replace_config, update_config
from axcore.errors import ConfigError
from axcore.layers import (
    MoE,
    PlainFeedForward,
    ScannedLayers,
    Stack,
    StochasticDepth,
)
from axcore.layers.linear import PlainDot
from axcore.layers.quantization.quantized_dot import Int8Dynamic
from axcore.module import count_params, functional


def toy():
    return vit("toy", num_classes=5, image_size=8, patch_size=4)


PIXELS = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)


def test_bytes_are_normalized_and_floats_are_not(call, random):
    pixels = NormalizePixels.Config(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)).build()
    wanted = (PIXELS / 255 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
    np.testing.assert_allclose(call(pixels, {}, PIXELS), wanted, rtol=1e-5, atol=1e-6)
    floats = random(1, 2, 2, 3)
    np.testing.assert_array_equal(call(pixels, {}, floats), floats)


def test_each_patch_sees_all_others(random):
    model = toy().build()
    image = jnp.asarray(random(1, 8, 8, 3))
    state = model.init(0)
    seen = jax.grad(lambda x: jnp.sum(functional(model, state, x)[0] ** 2))(image)
    per_patch = np.abs(np.asarray(seen)).reshape(2, 4, 2, 4, 3).max((1, 3, 4))
    assert np.all(per_patch > 0)


def test_a_picture_does_not_see_the_others_of_its_batch(call):
    model = toy().build()
    state = model.init(0)
    assert_same_to_rounding(call(model, state, PIXELS)[:1], call(model, state, PIXELS[:1]))


def test_positions_of_first_tokens_are_a_choice(call):
    cfg = update_config(toy(), {"encoder.num_first_tokens": 3})
    placed, unplaced = cfg, update_config(cfg, {"encoder.are_first_tokens_placed": False})
    assert placed.build().param_specs()["encoder"]["positions"].shape == (7, 64)
    assert unplaced.build().param_specs()["encoder"]["positions"].shape == (4, 64)
    model = unplaced.build()
    state = model.init(0)
    own = placed.build()
    with_zeros = jax.tree.map(lambda leaf: leaf, state)
    zeros = jnp.zeros((3, 64))
    positions = jnp.concatenate([zeros, state["encoder"]["positions"]])
    with_zeros["encoder"] = {**state["encoder"], "positions": positions}
    assert_same_to_rounding(call(model, state, PIXELS), call(own, with_zeros, PIXELS))


def test_patches_that_do_not_divide_a_picture_are_named():
    with pytest.raises(ConfigError, match=r"10 x 10 pixels, and patches 4 x 4") as error:
        vit("toy", num_classes=2, image_size=10, patch_size=4).build()
    assert "height=12, width=12" in str(error.value)


FEATURES = {
    "experts": lambda cfg: replace_config(
        cfg, PlainFeedForward, lambda old: MoE.Config(expert=old, num_experts=2, top_k=1)
    ),
    "int8": lambda cfg: replace_config(cfg, PlainDot, Int8Dynamic.Config()),
    "stochastic depth": lambda cfg: update_config(
        cfg, {"**.residual.dropout": StochasticDepth.Config(rate=0.5)}
    ),
    "grouped heads": lambda cfg: update_config(cfg, {"**.attention.num_kv_heads": 2}),
    "unrolled": lambda cfg: replace_config(
        cfg, ScannedLayers, lambda old: Stack.Config(num_layers=old.num_layers, layer=old.layer)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_of_language_models_changes_an_encoder_in_the_same_lines(name):
    cfg = FEATURES[name](toy())
    assert cfg != toy()
    model = cfg.build()

    def loss(state):
        logits, outputs = functional(model, state, PIXELS, rng=jax.random.key(0), training=True)
        return jnp.sum(logits**2) + outputs.total_loss() if outputs.losses else jnp.sum(logits**2)

    gradient = jax.grad(loss, allow_int=True)(model.init(0))
    leaves = [one for one in jax.tree.leaves(gradient) if one.dtype == jnp.float32]
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)
    assert any(bool(jnp.any(leaf != 0)) for leaf in leaves)


@pytest.mark.parametrize(
    ("cfg", "count"),
    [
        (vit("base", num_classes=1000), 86_567_656),
        (vit("large", num_classes=1000), 304_326_632),
        (clip("base"), 151_277_313),
        (clip("large", patch_size=14), 427_616_513),
        (siglip("base"), 203_155_970),
    ],
    ids=["vit-b16", "vit-l16", "clip-b32", "clip-l14", "siglip-b16"],
)
def test_published_models_have_as_many_parameters(cfg, count):
    assert count_params(cfg.build().param_specs()) == count


def test_flops_are_those_of_the_products():
    # Of ViT-B/16, which papers count as 17.6 billion multiplications and additions a picture.
    model = vit("base", num_classes=1000).build()
    assert model.flops_per_unit(None).per_unit == pytest.approx(6 * 17.6e9, rel=0.02)


def test_the_text_encoder_of_a_siglip_reads_padding_and_that_of_a_clip_does_not(call, random):
    tokens = np.array([[3, 4, 5, 0, 0]], np.int32)
    other = np.array([[3, 4, 5, 6, 7]], np.int32)
    mask = np.array([[True] * 3 + [False] * 2])
    for family, reads in ((clip, False), (siglip, True)):
        cfg = family("toy", image_size=8, patch_size=4, vocab_size=9, max_length=5)
        model = cfg.build()
        state = model.init(0)
        image = random(1, 8, 8, 3)
        one, two = (call(model, state, image, text, mask).second for text in (tokens, other))
        assert np.allclose(one, two, atol=1e-6) is not reads
        assert np.linalg.norm(one) == pytest.approx(1, rel=1e-5)
