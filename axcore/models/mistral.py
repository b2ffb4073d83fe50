"""Mistral and Mixtral: grouped queries, a sliding window, and in Mixtral mixtures of experts."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.interop import (
    ATTENTION,
    AXLEARN,
    HEAD_DIM,
    LLAMA_WEIGHTS,
    PRE_NORMS,
    Family,
    Field,
    Key,
    RopeFields,
    UnreachedWindow,
    below,
    linear,
    maxtext,
    model_weights,
    window,
)
from axcore.layers import FeedForward, MoE, Router
from axcore.models.causal_lm import TOY, CausalLM, Sizes, of_size, transformer
from axcore.models.llama import LLAMA_LIKE, llama_gguf, smallest

_MISTRAL_SIZES: Sizes = {
    "7b": {
        "vocab_size": 32_000,
        "dim": 4096,
        "num_layers": 32,
        "num_heads": 32,
        "num_kv_heads": 8,
        "hidden_dim": 14_336,
    },
    "toy": TOY,
}

WINDOW = 4096
"""Tokens that a query sees, its own included."""


def mistral(size: str) -> CausalLM.Config:
    """Return the config of a Mistral: `7b` (version 0.1) or `toy`.

    Source: Jiang et al. 2023, arXiv:2310.06825, table 1.
    """
    cfg = transformer(**of_size("mistral", _MISTRAL_SIZES, size))
    return update_config(cfg, {"**.norm.epsilon": 1e-5, "**.core.window": (WINDOW - 1, 0)})


MISTRAL = Family(
    architecture="MistralForCausalLM",
    template=smallest,
    config=(*LLAMA_LIKE, HEAD_DIM, window("sliding_window", 4096)),
    weights=lambda cfg: LLAMA_WEIGHTS,
    gguf=llama_gguf(UnreachedWindow()),
    layouts=(maxtext(scales_queries=True), AXLEARN),
)


_MIXTRAL_SIZES: Sizes = {
    "8x7b": {
        "vocab_size": 32_000,
        "dim": 4096,
        "num_layers": 32,
        "num_heads": 32,
        "num_kv_heads": 8,
        "hidden_dim": 14_336,
    },
    "8x22b": {
        "vocab_size": 32_000,
        "dim": 6144,
        "num_layers": 56,
        "num_heads": 48,
        "num_kv_heads": 8,
        "hidden_dim": 16_384,
    },
    "toy": TOY,
}
_BALANCE_LOSS = {"8x7b": 0.02, "8x22b": 0.001}
"""Coefficients as published, of one loss over all layers whose least value is `top_k`. Here each
layer has a loss, and 1 is its least value."""


def mixtral(size: str) -> CausalLM.Config:
    """Return the config of a Mixtral: `8x7b`, `8x22b` or `toy`.

    Source: Jiang et al. 2024, arXiv:2401.04088, table 1.
    """
    sizes, router = of_size("mixtral", _MIXTRAL_SIZES, size), Router.Config()
    if size in _BALANCE_LOSS:
        router = Router.Config(balance_loss=_BALANCE_LOSS[size] * 2 / sizes["num_layers"])
    cfg = transformer(**sizes)
    cfg = update_config(cfg, {"**.norm.epsilon": 1e-5, "**.position.theta": 1_000_000.0})
    return replace_config(
        cfg,
        FeedForward,
        lambda ffn: MoE.Config(expert=ffn, router=router, num_experts=8, top_k=2),
    )


_EXPERT = (*linear("gate", "w1"), *linear("down", "w2"), *linear("up", "w3"))
_EXPERTS = "experts.expert.{expert}"


def _template() -> Any:
    return replace_config(
        smallest(), FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=1, top_k=1)
    )


_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", ATTENTION),
    *below(
        "feed_forward",
        "block_sparse_moe",
        (*linear("router.linear", "gate"), *below(_EXPERTS, "experts.{expert}", _EXPERT)),
    ),
)

MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    template=_template,
    config=(
        *(entry for entry in LLAMA_LIKE if not isinstance(entry, RopeFields)),
        RopeFields(theta=1_000_000.0),
        HEAD_DIM,
        window("sliding_window", None),
        Field(
            "num_local_experts", ("**.feed_forward.num_experts",), alias="num_experts", default=8
        ),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), default=2),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"router_aux_loss_coef"}),
    gguf=llama_gguf(
        UnreachedWindow(),
        Key("num_local_experts", "expert_count"),
        Key("num_experts_per_tok", "expert_used_count"),
    ),
)
