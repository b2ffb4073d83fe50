"""Qwen2 with experts, and one that all tokens share, behind a gate: Qwen1.5-MoE and Qwen2-57B."""

from axcore.config import replace_config, update_config
from axcore.interop import (
    ATTENTION,
    FEED_FORWARD,
    PRE_NORMS,
    SIZES,
    EveryLayer,
    Family,
    Field,
    MustBe,
    RopeFields,
    activation,
    below,
    linear,
    model_weights,
    without,
)
from axcore.layers import FeedForward, MoE, Router
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.layers import TokenGated
from axl_attention.models.shared_maps import ROUTED, tied_by

_QWEN2_MOE_SIZES: Sizes = {
    "a2.7b": {
        "vocab_size": 151_936,
        "dim": 2048,
        "num_layers": 24,
        "num_heads": 16,
        "hidden_dim": 1408,
        "shared_dim": 5632,
        "experts": {"num_experts": 60, "top_k": 4},
    },
    "57b-a14b": {
        "vocab_size": 151_936,
        "dim": 3584,
        "num_layers": 28,
        "num_heads": 28,
        "num_kv_heads": 4,
        "hidden_dim": 2560,
        "shared_dim": 20_480,
        "experts": {"num_experts": 64, "top_k": 8},
    },
    "toy": {
        **TOY,
        "hidden_dim": 32,
        "shared_dim": 48,
        "experts": {"num_experts": 4, "top_k": 2},
    },
}
"""`hidden_dim` is that of one expert, `shared_dim` that of the shared one."""


def qwen2_moe(size: str) -> CausalLM.Config:
    """Return the config of Qwen1.5-MoE (`a2.7b`), of a Qwen2 with experts (`57b-a14b`) or `toy`.

    Source: Yang et al. 2024, arXiv:2407.10671, section 2.2.2 and table 1; Qwen1.5-MoE as in the
    config published with the weights.
    """
    sizes = dict(of_size("qwen2_moe", _QWEN2_MOE_SIZES, size))
    experts, shared_dim = sizes.pop("experts"), sizes.pop("shared_dim")
    router = Router.Config(is_normalized=False, balance_loss=0.001, balance_over="batch")
    shared = TokenGated.Config(inner=FeedForward.Config(hidden_dim=shared_dim))
    cfg = replace_config(
        transformer(**sizes),
        FeedForward,
        lambda ffn: MoE.Config(expert=ffn, shared=shared, router=router, **experts),
    )
    return update_config(
        cfg, {"**.attention.linear.has_bias": True, "**.position.theta": 1_000_000.0}
    )


_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", ATTENTION),
    *ROUTED,
    *linear("feed_forward.shared.gate", "mlp.shared_expert_gate"),
    *below("feed_forward.shared.inner", "mlp.shared_expert", FEED_FORWARD),
)

QWEN2_MOE = Family(
    architecture="Qwen2MoeForCausalLM",
    template=lambda: qwen2_moe("toy"),
    config=(
        *without(SIZES, "intermediate_size"),
        activation("hidden_act", "silu"),
        tied_by(),
        RopeFields(),
        Field("qkv_bias", ("**.attention.linear.has_bias",), default=True),
        Field("moe_intermediate_size", ("**.expert.hidden_dim",), default=1408),
        Field("shared_expert_intermediate_size", ("**.inner.hidden_dim",), default=5632),
        Field("num_experts", ("**.feed_forward.num_experts",), default=60),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), default=4),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=False),
        MustBe("decoder_sparse_step", (1,)),
        MustBe("mlp_only_layers", ([], None)),
        MustBe("use_sliding_window", (False,)),
        EveryLayer("layer_types", "full_attention"),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset(
        {"intermediate_size", "max_window_layers", "router_aux_loss_coef", "sliding_window"}
    ),
)
