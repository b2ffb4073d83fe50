"""Granite 3: a Llama whose embeddings, attention, branches and logits are scaled by constants.

Its small sizes have experts (`granitemoe`).
"""

from typing import Any

import attrs

from axcore.config import replace_config, update_config
from axcore.interop import (
    ATTENTION,
    ATTENTION_BIAS,
    LLAMA_WEIGHTS,
    PRE_NORMS,
    SIZES,
    Chain,
    Concatenate,
    Family,
    Field,
    RopeFields,
    StackArrays,
    Transpose,
    WeightMap,
    activation,
    all_experts,
    below,
    common_value,
    linear,
    model_weights,
    same,
    without,
)
from axcore.layers import FeedForward, MoE, PreNorm, Router
from axcore.models import TOY, CausalLM, Sizes, TiedHead, of_size, transformer
from axl_attention.models.shared_maps import MLP_BIAS, tied_by
from axl_attention.norms import DividedLogits, with_scaled_residual

_PUBLISHED = {"vocab_size": 49_155, "num_layers": 40, "num_heads": 32, "num_kv_heads": 8}

_GRANITE_SIZES: Sizes = {
    "2b": {"dim": 2048, "hidden_dim": 8192, "scale": 1 / 64, "divisor": 8.0, **_PUBLISHED},
    "8b": {"dim": 4096, "hidden_dim": 12_800, "scale": 1 / 128, "divisor": 16.0, **_PUBLISHED},
    "toy": {**TOY, "scale": 1 / 16, "divisor": 2.0},
}


def granite(size: str) -> CausalLM.Config:
    """Return the config of a Granite 3.1: `2b`, `8b` or `toy`.

    Source: IBM 2024, "Granite 3.0 Language Models", table 1; constants as in the configs published
    with the weights.
    """
    cfg = scaled(dict(of_size("granite", _GRANITE_SIZES, size)))
    return update_config(cfg, {"**.norm.epsilon": 1e-5, "**.position.theta": 5_000_000.0})


_SMALL = {"vocab_size": 49_155, "num_kv_heads": 8, "hidden_dim": 512, "scale": 1 / 64}

_GRANITEMOE_SIZES: Sizes = {
    "1b-a400m": {
        "dim": 1024,
        "num_layers": 24,
        "num_heads": 16,
        "divisor": 6.0,
        "experts": {"num_experts": 32, "top_k": 8},
        **_SMALL,
    },
    "3b-a800m": {
        "dim": 1536,
        "num_layers": 32,
        "num_heads": 24,
        "divisor": 6.0,
        "experts": {"num_experts": 40, "top_k": 8},
        **_SMALL,
    },
    "toy": {**_GRANITE_SIZES["toy"], "hidden_dim": 32, "experts": {"num_experts": 4, "top_k": 2}},
}
"""`hidden_dim` is that of one expert."""


def granitemoe(size: str) -> CausalLM.Config:
    """Return the config of a Granite 3.0 with experts: `1b-a400m`, `3b-a800m` or `toy`.

    Source: IBM 2024, "Granite 3.0 Language Models", table 1; constants as in the configs published
    with the weights.
    """
    sizes = dict(of_size("granitemoe", _GRANITEMOE_SIZES, size))
    experts = sizes.pop("experts")
    router = Router.Config(balance_over="batch")
    return replace_config(
        scaled(sizes),
        FeedForward,
        lambda ffn: MoE.Config(expert=ffn, router=router, **experts),
    )


def scaled(sizes: dict[str, Any]) -> Any:
    """Return a transformer with the constants of Granite."""
    scale, head = sizes.pop("scale"), DividedLogits.Config(divisor=sizes.pop("divisor"))
    cfg = replace_config(transformer(**sizes), PreNorm, with_scaled_residual)
    return update_config(
        cfg,
        {
            "head": head,
            "head.inner": TiedHead.Config(),
            "decoder.embedding.scale": 12.0,
            "**.residual.scale": 0.22,
            "**.core.scale": scale,
        },
    )


SCALES = tuple(
    Field(name, (path,), default=1.0, to_axcore=float)
    for name, path in (
        ("embedding_multiplier", "decoder.embedding.scale"),
        ("attention_multiplier", "**.core.scale"),
        ("residual_multiplier", "**.residual.scale"),
        ("logits_scaling", "head.divisor"),
    )
)
"""The entries of Granite's constants."""


HEAD = same("head.inner.weight", "lm_head.weight")

GRANITE = Family(
    architecture="GraniteForCausalLM",
    template=lambda: granite("toy"),
    config=(
        *SIZES,
        activation("hidden_act", "silu"),
        RopeFields(),
        tied_by("head.inner"),
        ATTENTION_BIAS,
        MLP_BIAS,
        *SCALES,
    ),
    weights=lambda cfg: (*LLAMA_WEIGHTS, HEAD),
)


def mixture_weights(mixture: MoE.Config) -> WeightMap:
    """Return the rules of experts and their router."""
    count, width = mixture.num_experts, common_value(mixture, "expert.hidden_dim")
    stacked = Chain(Transpose(), StackArrays(count))
    both = Chain(stacked, Concatenate((width, width), axis=1))
    parts = ("gate.weight", "up.weight")
    rules = (
        all_experts("experts.expert", parts, "input_linear.weight", both, count=count),
        all_experts(
            "experts.expert", ("down.weight",), "output_linear.weight", stacked, count=count
        ),
        *linear("router.linear", "router.layer"),
    )
    return below("feed_forward", "block_sparse_moe", rules)


def _mixed_weights(cfg: Any) -> WeightMap:
    layer = (
        *PRE_NORMS,
        *below("attention", "self_attn", ATTENTION),
        *mixture_weights(common_value(cfg, "**.feed_forward")),
    )
    return (*model_weights(*layer), HEAD)


GRANITEMOE = attrs.evolve(
    GRANITE,
    architecture="GraniteMoeForCausalLM",
    template=lambda: granitemoe("toy"),
    config=(
        *without(GRANITE.config, "mlp_bias"),
        Field("num_local_experts", ("**.feed_forward.num_experts",), default=8),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), default=2),
    ),
    weights=_mixed_weights,
    irrelevant=frozenset({"router_aux_loss_coef"}),
)
