"""Qwen3-Next: its layers by their formulas, its size and its published config."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.gated_attention import with_gates
from axl_attention.gated_delta_net import GatedDeltaNet
from axl_attention.latent_attention import LatentAttention
from axl_attention.layers import TokenGated
from axl_attention.models import qwen3_5, qwen3_next
from axl_attention.recurrence import DeltaInputs, delta_rule
from numpy_state import numpy_state
from safetensors.numpy import load_file, save_file

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop import (
    common_value,
    family_named,
    family_of,
    from_hugging_face,
    to_hugging_face,
)
from axcore.layers import Attention, FeedForward
from axcore.module import count_params

QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SECOND_TOKEN = 1_650_471_424
"""Parameters of the layer that predicts a second token."""


def test_published_config_is_that_of_the_catalogue():
    """As Qwen/Qwen3-Next-80B-A3B-Instruct counts its tensors."""
    family, ours = family_named("qwen3_next"), qwen3_next("80b-a3b")
    assert family.normal(family.read(QWEN3_NEXT)) == family.normal(ours)
    assert family_of(ours)[0] == "qwen3_next"
    shapes = family.bind(ours).shapes
    assert sum(map(math.prod, shapes.values())) == 81_324_862_720 - SECOND_TOKEN
    assert count_params(ours.build().param_specs()) == 81_324_862_720 - SECOND_TOKEN


def test_layer_for_a_second_token_is_counted_by_its_formula():
    """It attends, has experts, and enters by a projection of two vectors, each with a norm."""
    attention = 2048 * 4096 * 3 + 2 * 2048 * 512 + 2 * 256
    experts = (512 + 1) * 3 * 2048 * 512 + 512 * 2048 + 2048
    assert attention + experts + 2 * 2048 + 2 * 2048 * 2048 + 3 * 2048 == SECOND_TOKEN


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\]"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step=2"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"layer_types": ["sliding_attention"] * 48}, "does not know; there are 48"),
    ],
)
def test_what_axcore_lacks_is_an_error(changes, words):
    with pytest.raises(ConfigError, match=words):
        family_named("qwen3_next").read({**QWEN3_NEXT, **changes})


def test_any_size_of_chunks_is_the_same_published_model(tmp_path):
    """Layers for multi-token prediction are ignored, with a warning."""
    cfg = update_config(qwen3_next("toy"), {"**.attention.chunk": 3})
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "model", cfg, state)
    file = tmp_path / "model" / "model.safetensors"
    save_file({**load_file(file), "mtp.norm.weight": np.ones(64, np.float32)}, file)
    with pytest.warns(UserWarning, match=r"multi-token.*mtp\.norm\.weight"):
        read = from_hugging_face(tmp_path / "model")
    assert common_value(read.config, "**.attention.chunk") == 64
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, read.state, state)))


def inputs_of(random, segments):
    """Return 2 rows of 11 tokens, of 2 keys for 2 values each."""
    keys = random(2, 11, 2, 4)
    return DeltaInputs(
        q=random(2, 11, 2, 4),
        k=keys / np.linalg.norm(keys, axis=-1, keepdims=True),
        v=random(2, 11, 2, 2, 3),
        log_decay=-np.abs(random(2, 11, 2, 2)),
        beta=1 / (1 + np.exp(random(2, 11, 2, 2))),
        segments=segments,
    )


def by_token(inputs):
    """Run the recurrence for each row and head by itself; a new document forgets."""
    out = np.zeros_like(inputs.v)
    for row, head, group in np.ndindex(2, 2, 2):
        memory = np.zeros((4, 3))
        for t in range(11):
            if t and inputs.segments[row, t] != inputs.segments[row, t - 1]:
                memory = np.zeros((4, 3))
            memory = memory * np.exp(inputs.log_decay[row, t, head, group])
            key, value = inputs.k[row, t, head], inputs.v[row, t, head, group]
            change = inputs.beta[row, t, head, group] * (value - key @ memory)
            memory = memory + np.outer(key, change)
            out[row, t, head, group] = inputs.q[row, t, head] @ memory
    return out


WHOLE = np.zeros((2, 11), np.int32)
PACKED = np.array([[1] * 4 + [2] * 5 + [3] * 2, [1] + [2] * 7 + [0] * 3], np.int32)


@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("segments", [WHOLE, PACKED], ids=["whole", "packed"])
def test_delta_rule_is_the_recurrence_whatever_the_chunks(random, chunk, segments):
    inputs = inputs_of(random, segments)
    got, _ = jax.jit(delta_rule, static_argnames="chunk")(inputs, chunk=chunk)
    np.testing.assert_allclose(got, by_token(inputs), atol=1e-5)


@pytest.mark.slow
def test_gradient_is_the_same_whatever_the_chunks(random):
    inputs = inputs_of(random, PACKED)
    weights = random(2, 11, 2, 2, 3)

    def gradients(chunk):
        def weighted(*arrays):
            return jnp.sum(delta_rule(DeltaInputs(*arrays, PACKED), chunk=chunk)[0] * weights)

        return jax.jit(jax.grad(weighted, argnums=tuple(range(5))))(*inputs[:5])

    for some, others in zip(gradients(3), gradients(11), strict=True):
        assert np.any(some)
        np.testing.assert_allclose(some, others, atol=1e-4)


def test_memory_has_whole_groups_of_values():
    cfg = GatedDeltaNet.Config(num_key_heads=2, num_value_heads=3)
    with pytest.raises(ConfigError, match="num_value_heads is 3, not a multiple"):
        cfg.build(dim=8)


@pytest.mark.parametrize(
    "plain",
    [Attention.Config(num_heads=2), LatentAttention.Config(num_heads=2, keeps_latents=True)],
)
def test_heads_are_gated_before_they_are_projected(call, random, state_of, packed, plain):
    module, x = with_gates(plain).build(dim=16), random(2, 8, 16)
    state = state_of(module)
    inner = {name: value for name, value in state["inner"].items() if name != "out"}
    identity = {**inner, "out": {"weight": np.eye(16, dtype=np.float32)}}
    out = np.asarray(state["inner"]["out"]["linear"]["weight"])
    mixed = call(plain.build(dim=16), identity, x, packed)
    gates = 1 / (1 + np.exp(-(x @ np.asarray(state["gate"]["weight"]))))
    np.testing.assert_allclose(call(module, state, x, packed), (mixed * gates) @ out, atol=1e-5)


def test_attention_is_gated_once():
    twice = with_gates(with_gates(Attention.Config(num_heads=2)).inner)
    with pytest.raises(ConfigError, match="GatedLinear wraps another GatedLinear"):
        twice.build(dim=16)


def test_each_token_takes_its_own_share_of_a_feed_forward(call, random, state_of):
    inner = FeedForward.Config(hidden_dim=8)
    module, x = TokenGated.Config(inner=inner).build(dim=16), random(2, 8, 16)
    state = state_of(module)
    gates = 1 / (1 + np.exp(-(x @ np.asarray(state["gate"]["weight"]))))
    expected = gates * call(inner.build(dim=16), state["inner"], x)
    np.testing.assert_allclose(call(module, state, x), expected, atol=1e-5)


def test_experts_of_qwen_3_5_are_read_from_one_array_of_a_layer(tmp_path):
    """As they are published; exports have those of each expert."""
    cfg = qwen3_5("toy-mixed")
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "exported", cfg, state)
    found = load_file(tmp_path / "exported" / "model.safetensors")
    for layer in range(4):
        place = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            np.stack([found.pop(f"{place}.{i}.{part}_proj.weight") for i in range(4)])
            for part in ("gate", "up", "down")
        )
        found |= {f"{place}.gate_up_proj": np.concatenate([gate, up], axis=1)}
        found |= {f"{place}.down_proj": down}
    save_file(found, tmp_path / "exported" / "model.safetensors")
    read = from_hugging_face(tmp_path / "exported")
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, read.state, state)))
