"""Phi-3, Phi-3.5 and Phi-4: queries, keys and values in one matrix, gates and inputs in another.

Models for long rows stretch positions by how long a row is (`longrope`); they are refused.
"""

from typing import Any

from axcore.interop import (
    PRE_NORMS,
    SIZES,
    Family,
    Field,
    Only,
    WeightMap,
    activation,
    common_value,
    linear,
    model_weights,
    window,
    without,
)
from axl_attention.models.hugging_face.entries import NoPadding, fused, tied_by
from axl_attention.models.hugging_face.partial_rope import PartialRopeFields
from axl_attention.models.phi3 import phi3


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    kv_heads = common_value(cfg, "**.attention.num_kv_heads") or num_heads
    kv, hidden = cfg.dim // num_heads * kv_heads, common_value(cfg, "**.hidden_dim")
    qkv = tuple(f"attention.{part}" for part in "qkv")
    return model_weights(
        *PRE_NORMS,
        fused(qkv, "self_attn.qkv_proj", (cfg.dim, kv, kv)),
        *linear("attention.out", "self_attn.o_proj"),
        fused(("feed_forward.gate", "feed_forward.up"), "mlp.gate_up_proj", (hidden, hidden)),
        *linear("feed_forward.down", "mlp.down_proj"),
    )


PHI3 = Family(
    architecture="Phi3ForCausalLM",
    template=lambda: phi3("toy"),
    config=(
        *without(SIZES, "rms_norm_eps"),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_ours=float),
        activation("hidden_act", "silu"),
        Only("rope_scaling", (None,)),
        PartialRopeFields(),
        tied_by(),
        NoPadding(),
        window("sliding_window", None),
        *(
            Only(name, (False,), is_written=False)
            for name in ("attention_bias", "lm_head_bias", "mlp_bias")
        ),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "embd_pdrop",
            "full_attn_mod",
            "interpolate_factor",
            "original_max_position_embeddings",
            "resid_pdrop",
        }
    ),
)
