"""Qwen3, dense and with experts."""

from typing import Any

from axcore.config import replace_config
from axcore.interop import (
    ATTENTION,
    ATTENTION_BIAS,
    FEED_FORWARD,
    HEAD_DIM,
    LLAMA_KEYS,
    PRE_NORMS,
    SIZE_KEYS,
    SIZES,
    Choice,
    EveryLayer,
    Family,
    Field,
    Fixed,
    GGUFMap,
    GGUFRope,
    Key,
    Only,
    RopeFields,
    activation,
    below,
    linear,
    model_weights,
    same,
    without,
)
from axcore.layers import Attention, FeedForward, MoE
from axcore.models import TiedHead, UntiedHead, transformer
from axl_attention.query_key_norm import in_place_of as with_query_key_norm

_ATTENTION = (
    *ATTENTION,
    same("position.query_norm.weight", "q_norm.weight"),
    same("position.key_norm.weight", "k_norm.weight"),
)
_COMMON = (
    *without(SIZES, "intermediate_size"),
    HEAD_DIM,
    activation("hidden_act", "silu"),
    Choice(
        "tie_word_embeddings", "head", {False: UntiedHead.Config(), True: TiedHead.Config()}, False
    ),
    RopeFields(path="**.attention.position.inner"),
    ATTENTION_BIAS,
    Only("use_sliding_window", (False,)),
    EveryLayer("layer_types", "full_attention"),
)
_UNUSED = frozenset({"max_window_layers", "sliding_window"})
_UNREAD = frozenset({"use_qk_norm"})
"""All Qwen3 normalise queries and keys."""
_KEYS = (GGUFRope(), Fixed("attention_bias", False), Fixed("use_sliding_window", False))


def _dense() -> Any:
    cfg = transformer(vocab_size=1, dim=1, num_layers=1, num_heads=1, hidden_dim=1)
    return replace_config(cfg, Attention, with_query_key_norm)


def _mixed() -> Any:
    return replace_config(
        _dense(), FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=1, top_k=1)
    )


_DENSE_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", _ATTENTION),
    *below("feed_forward", "mlp", FEED_FORWARD),
)
_MIXED_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", _ATTENTION),
    *linear("feed_forward.router.linear", "mlp.gate"),
    *below("feed_forward.experts.expert.{expert}", "mlp.experts.{expert}", FEED_FORWARD),
)

QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    template=_dense,
    config=(Field("intermediate_size", ("**.hidden_dim",)), *_COMMON),
    weights=lambda cfg: _DENSE_WEIGHTS,
    irrelevant=_UNUSED,
    unread=_UNREAD,
    gguf=GGUFMap(architecture="qwen3", entries=(*LLAMA_KEYS, *_KEYS)),
)
QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    template=_mixed,
    config=(
        *_COMMON,
        Field("moe_intermediate_size", ("**.hidden_dim",)),
        Field("num_experts", ("**.feed_forward.num_experts",), alias="num_local_experts"),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",)),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=False),
        Only("decoder_sparse_step", (1,)),
        Only("mlp_only_layers", ([],)),
    ),
    weights=lambda cfg: _MIXED_WEIGHTS,
    irrelevant=_UNUSED | {"intermediate_size", "router_aux_loss_coef"},
    unread=_UNREAD,
    gguf=GGUFMap(
        architecture="qwen3moe",
        entries=(
            *SIZE_KEYS,
            *_KEYS,
            Fixed("hidden_act", "silu"),
            Key("moe_intermediate_size", "expert_feed_forward_length"),
            Key("num_experts", "expert_count"),
            Key("num_experts_per_tok", "expert_used_count"),
            Fixed("norm_topk_prob", True),
            Fixed("decoder_sparse_step", 1),
            Fixed("mlp_only_layers", []),
        ),
    ),
)
