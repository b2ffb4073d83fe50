"""Llama 4: its layers by their formulas, its sizes and its published configs."""

import math

import numpy as np
import pytest
from axl_attention.layers import InputScaled
from axl_attention.models import llama4
from axl_attention.norms import TemperatureTuning, UnitQueryKey

from axcore.config import find_config, update_config
from axcore.errors import ConfigError
from axcore.interop import family_named, family_of
from axcore.layers import Dropless, FeedForward, MoE, NoPosition, Routing
from axcore.module import count_params

POSITIONS = np.array([[0, 2, 3, 8, 15, 16]], np.int32)
SCOUT = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attention_dropout": 0.0,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "bos_token_id": 200000,
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 262144,
    "model_type": "llama4_text",
    "moe_layers": list(range(48)),
    "no_rope_layers": [1, 1, 1, 0] * 12,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "output_router_logits": False,
    "pad_token_id": 200018,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
MAVERICK = {
    **SCOUT,
    "interleave_moe_layer_step": 2,
    "moe_layers": list(range(1, 48, 2)),
    "no_rope_layers": [],
    "num_local_experts": 128,
    "rope_scaling": None,
    "use_qk_norm": False,
}
VISION = 871_932_416
"""Parameters of the vision tower and of what leads from it to the text part."""


@pytest.mark.parametrize(
    ("size", "fields", "published"),
    [("scout", SCOUT, 108_641_793_536), ("maverick", MAVERICK, 401_583_781_376)],
)
def test_published_config_is_that_of_the_catalogue(size, fields, published):
    """As meta-llama/Llama-4-* count their tensors."""
    family, whole = family_named("llama4_text"), family_named("llama4")
    nested = {"model_type": "llama4", "text_config": fields, "vision_config": {"hidden_size": 1}}
    assert family.normal(family.read(fields)) == family.normal(llama4(size))
    assert whole.read(nested) == family.read(fields)
    assert family_of(llama4(size))[0] == "llama4_text"
    shapes = family.bind(llama4(size)).shapes
    assert sum(map(math.prod, shapes.values())) == published - VISION
    assert count_params(llama4(size).build().param_specs()) == published - VISION


def test_vision_tower_is_counted_by_its_formula():
    """34 layers of width 1408 on 24 x 24 patches of 14 x 14 pixels, and three projections."""
    attention = 4 * 1408 * (1408 + 1)
    feed_forward = 1408 * 5632 + 5632 + 5632 * 1408 + 1408
    embeddings = (24**2 + 1) * 1408 + 1408 + 14 * 14 * 3 * 1408
    layers = 34 * (attention + feed_forward + 4 * 1408)
    projections = 5632 * 4096 + 4096 * 4096 + 4096 * 5120
    assert embeddings + 4 * 1408 + layers + projections == VISION


def test_instruct_model_of_scout_has_no_waves_between_short_and_long_ones():
    scaling = {**SCOUT["rope_scaling"], "factor": 16.0, "high_freq_factor": 1.0}
    family = family_named("llama4_text")
    cfg = family.read({**SCOUT, "rope_scaling": scaling})
    assert family.write(cfg)["rope_scaling"] == scaling


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"no_rope_layers": [1, 0]}, "there are 48 layers"),
        ({"no_rope_layers": [2, 1, 1, 0] * 12}, "with 0 or 1 for each"),
        ({"layer_types": ["full_attention"] * 48}, "chunks in layers with rotary positions"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
    ],
)
def test_layers_that_axcore_lacks_are_an_error(changes, words):
    with pytest.raises(ConfigError, match=words):
        family_named("llama4_text").read({**SCOUT, **changes})


def test_layers_without_positions_may_have_no_temperature():
    family = family_named("llama4_text")
    cfg = family.read({**SCOUT, "attn_temperature_tuning": False})
    assert len(find_config(cfg, NoPosition)) == 1
    assert not find_config(cfg, TemperatureTuning)
    assert family.read(family.write(cfg)) == cfg


def test_a_model_without_experts_is_no_llama_4():
    cfg = update_config(llama4("toy"), {"decoder.stack.layer.layers": ()})
    layers = llama4("toy").decoder.stack.layer.layers
    dense = tuple(layer for layer in layers if not find_config(layer, MoE))
    cfg = update_config(cfg, {"decoder.stack.layer.layers": dense})
    with pytest.raises(ConfigError, match="no layer of"):
        family_named("llama4_text").write(cfg)


def test_experts_get_their_share_of_a_token_and_give_all_that_they_make(call, random, state_of):
    expert = FeedForward.Config(hidden_dim=8)
    sizes = {"dim": 16, "num_experts": 3, "expert": expert}
    module, x = InputScaled.Config(**sizes).build(), random(2, 5, 16)
    state = state_of(module)
    experts = np.arange(20, dtype=np.int32).reshape(2, 5, 2) % 3
    weights = np.abs(random(2, 5, 2))
    got = call(module, state, x, Routing(experts, weights))
    expected = np.zeros_like(x)
    arrays = state["inner"]["expert"]
    gate, up, down = (np.asarray(arrays[name]["weight"]) for name in ("gate", "up", "down"))
    for at in np.ndindex(2, 5, 2):
        share, of = x[at[:2]] * weights[at], experts[at]
        gates = share @ gate[of]
        expected[at[:2]] += (gates / (1 + np.exp(-gates)) * (share @ up[of])) @ down[of]
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_weights_of_one_scale_nothing(call, random, state_of):
    sizes = {"dim": 16, "num_experts": 3, "expert": FeedForward.Config(hidden_dim=8)}
    scaled, plain = InputScaled.Config(**sizes).build(), Dropless.Config(**sizes).build()
    state, x = state_of(scaled), random(2, 5, 16)
    experts = np.arange(20, dtype=np.int32).reshape(2, 5, 2) % 3
    routing = Routing(experts, np.ones((2, 5, 2), np.float32))
    expected = call(plain, state["inner"], x, routing)
    np.testing.assert_allclose(call(scaled, state, x, routing), expected, atol=1e-5)


def test_queries_and_keys_are_as_long_whatever_they_were(call, random):
    q, k = random(1, 6, 2, 8), random(1, 6, 1, 8)
    module = UnitQueryKey.Config(epsilon=1e-9).build(head_dim=8)
    got_q, got_k = call(module, {}, q, k, POSITIONS)
    for got in (got_q, got_k):
        np.testing.assert_allclose(np.mean(got**2, axis=-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(call(module, {}, 7 * q, k, POSITIONS)[0], got_q, atol=1e-5)
    turned, _ = call(module.inner, {}, q, k, POSITIONS)
    length = np.sqrt(np.mean(q**2, axis=-1, keepdims=True))
    np.testing.assert_allclose(got_q, turned / length, atol=1e-5)


def test_queries_grow_by_the_logarithm_of_intervals_seen(call, random):
    q, k = random(1, 6, 2, 8), random(1, 6, 1, 8)
    module = TemperatureTuning.Config(interval=4, strength=0.5).build(head_dim=8)
    got_q, got_k = call(module, {}, q, k, POSITIONS)
    factors = [1 + 0.5 * math.log(1 + (position + 1) // 4) for position in POSITIONS[0]]
    assert factors[:2] == [1.0, 1.0]
    np.testing.assert_allclose(got_q, q * np.array(factors)[None, :, None, None], rtol=1e-5)
    np.testing.assert_array_equal(got_k, k)
