"""GLM-4 and GLM-4-0414: interleaved rotary rows, gates and inputs in one matrix."""

from typing import Any

import attrs

from axcore.interop import (
    HEAD_DIM,
    PRE_NORMS,
    SIZES,
    Family,
    Field,
    Only,
    WeightMap,
    activation,
    below,
    common_value,
    linear,
    model_weights,
    same,
    without,
)
from axl_attention.models.glm import glm, glm4
from axl_attention.models.hugging_face.entries import NoPadding, fused, interleaved_projection
from axl_attention.models.hugging_face.partial_rope import PartialRopeFields

_SANDWICH = (
    same("attention_residual.before.weight", "input_layernorm.weight"),
    same("attention_residual.after.weight", "post_self_attn_layernorm.weight"),
    same("feed_forward_residual.before.weight", "post_attention_layernorm.weight"),
    same("feed_forward_residual.after.weight", "post_mlp_layernorm.weight"),
)


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    num_kv_heads = common_value(cfg, "**.attention.num_kv_heads") or num_heads
    head_dim = common_value(cfg, "**.attention.head_dim") or cfg.dim // num_heads
    rotated = int(head_dim * common_value(cfg, "**.position.fraction"))

    pairs = {"rotated": rotated, "rest": head_dim - rotated}
    attention = (
        *interleaved_projection("q", num_heads, **pairs),
        *interleaved_projection("k", num_kv_heads, **pairs),
        *linear("v", "v_proj"),
        *linear("out", "o_proj"),
    )
    width = common_value(cfg, "**.hidden_dim")
    return model_weights(
        *PRE_NORMS,
        *_SANDWICH,
        *below("attention", "self_attn", attention),
        fused(("feed_forward.gate", "feed_forward.up"), "mlp.gate_up_proj", (width, width)),
        *linear("feed_forward.down", "mlp.down_proj"),
    )


GLM = Family(
    architecture="GlmForCausalLM",
    template=lambda: glm("toy"),
    config=(
        *without(SIZES, "rms_norm_eps"),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1.5625e-07, to_ours=float),
        HEAD_DIM,
        activation("hidden_act", "silu"),
        PartialRopeFields(default=0.5, is_always_partial=True),
        NoPadding(),
        Field("attention_bias", ("**.attention.linear.has_bias",), default=True),
        Only("tie_word_embeddings", (False,)),
    ),
    weights=_weights,
)
GLM4 = attrs.evolve(GLM, architecture="Glm4ForCausalLM", template=lambda: glm4("toy"))
