"""Qwen 3: queries and keys are normalised; in the MoE sizes every feed-forward is a mixture."""

from typing import Any

from axcore.config import replace_config, update_config
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
    MustBe,
    RopeFields,
    Unused,
    activation,
    below,
    linear,
    maxtext,
    model_weights,
    same,
    without,
)
from axcore.layers import Attention, FeedForward, MoE, Router
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.norms import with_query_key_norm

_PUBLISHED = {"vocab_size": 151_936, "head_dim": 128}
_TOY = {**TOY, "head_dim": 32}

_QWEN3_SIZES: Sizes = {
    "0.6b": {
        "dim": 1024,
        "num_layers": 28,
        "num_heads": 16,
        "num_kv_heads": 8,
        "hidden_dim": 3072,
        **_PUBLISHED,
    },
    "1.7b": {
        "dim": 2048,
        "num_layers": 28,
        "num_heads": 16,
        "num_kv_heads": 8,
        "hidden_dim": 6144,
        **_PUBLISHED,
    },
    "4b": {
        "dim": 2560,
        "num_layers": 36,
        "num_heads": 32,
        "num_kv_heads": 8,
        "hidden_dim": 9728,
        **_PUBLISHED,
    },
    "8b": {
        "dim": 4096,
        "num_layers": 36,
        "num_heads": 32,
        "num_kv_heads": 8,
        "hidden_dim": 12_288,
        **_PUBLISHED,
    },
    "14b": {
        "dim": 5120,
        "num_layers": 40,
        "num_heads": 40,
        "num_kv_heads": 8,
        "hidden_dim": 17_408,
        **_PUBLISHED,
    },
    "32b": {
        "dim": 5120,
        "num_layers": 64,
        "num_heads": 64,
        "num_kv_heads": 8,
        "hidden_dim": 25_600,
        **_PUBLISHED,
    },
    "toy": _TOY,
}
_TIED = ("0.6b", "1.7b", "4b")
"""Sizes whose embedding is their head, too."""

_EXPERTS = {"num_experts": 128, "top_k": 8}
_QWEN3_MOE_SIZES: Sizes = {
    "30b-a3b": {
        "dim": 2048,
        "num_layers": 48,
        "num_heads": 32,
        "num_kv_heads": 4,
        "hidden_dim": 768,
        **_EXPERTS,
        **_PUBLISHED,
    },
    "235b-a22b": {
        "dim": 4096,
        "num_layers": 94,
        "num_heads": 64,
        "num_kv_heads": 4,
        "hidden_dim": 1536,
        **_EXPERTS,
        **_PUBLISHED,
    },
    "toy": {**_TOY, "hidden_dim": 32, "num_experts": 4, "top_k": 2},
}
"""`hidden_dim` is that of one expert."""


def qwen3(size: str) -> CausalLM.Config:
    """Return the config of a dense Qwen 3: `0.6b`, `1.7b`, `4b`, `8b`, `14b`, `32b` or `toy`.

    Source: Yang et al. 2025, arXiv:2505.09388, section 2 and table 1; widths as in the configs
    published with the weights.
    """
    cfg = _qwen3(**of_size("qwen3", _QWEN3_SIZES, size))
    return replace_config(cfg, UntiedHead, TiedHead.Config()) if size in _TIED else cfg


def qwen3_moe(size: str) -> CausalLM.Config:
    """Return the config of a Qwen 3 with experts: `30b-a3b`, `235b-a22b` or `toy`.

    Source: Yang et al. 2025, arXiv:2505.09388, section 2 and table 2. The load is balanced over the
    full batch.
    """
    sizes = dict(of_size("qwen3_moe", _QWEN3_MOE_SIZES, size))
    experts = {name: sizes.pop(name) for name in ("num_experts", "top_k")}
    coefficient = 0.001  # of one loss over all layers, whose least value is top_k
    if size != "toy":  # here each layer has a loss, and 1 is its least value
        coefficient *= experts["top_k"] / sizes["num_layers"]
    router = Router.Config(balance_loss=coefficient, balance_over="batch")
    return replace_config(
        _qwen3(**sizes),
        FeedForward,
        lambda ffn: MoE.Config(expert=ffn, router=router, **experts),
    )


def _qwen3(*, head_dim: int, **sizes: Any) -> Any:
    cfg = update_config(
        transformer(**sizes),
        {"**.attention.head_dim": head_dim, "**.position.theta": 1_000_000.0},
    )
    return replace_config(cfg, Attention, with_query_key_norm)


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
    MustBe("use_sliding_window", (False,)),
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
    layouts=(maxtext(),),
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
        MustBe("decoder_sparse_step", (1,)),
        MustBe("mlp_only_layers", ([],)),
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
            Unused("feed_forward_length"),
            Key("num_experts", "expert_count"),
            Key("num_experts_per_tok", "expert_used_count"),
            Fixed("norm_topk_prob", True),
            Fixed("decoder_sparse_step", 1),
            Fixed("mlp_only_layers", []),
        ),
    ),
)
