"""GPT-OSS: sinks, every second layer local, and experts with biases and clamped units."""

from typing import Any

import attrs

from axcore.config import find_config, replace_config, update_config
from axcore.interop import (
    ATTENTION,
    ATTENTION_BIAS,
    PRE_NORMS,
    SIZES,
    Chain,
    Family,
    Field,
    JoinAxes,
    MustBe,
    RopeFields,
    Rule,
    StackArrays,
    Transform,
    WeightMap,
    all_experts,
    below,
    every,
    linear,
    model_weights,
    same,
    window,
    without,
)
from axcore.layers import DotProductAttention, FeedForward, Linear, MoE, RoPE, Router, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.attention_cores import with_sinks
from axl_attention.layers import ClampedFeedForward
from axl_attention.models.gemma import LOCAL, in_turns, local
from axl_attention.rope_scaling import YaRN

_PUBLISHED = {
    "vocab_size": 201_088,
    "dim": 2880,
    "num_heads": 64,
    "num_kv_heads": 8,
    "head_dim": 64,
    "hidden_dim": 2880,
    "window": 128,
    "original_length": 4096,
}
_GPT_OSS_SIZES: Sizes = {
    "20b": {**_PUBLISHED, "num_layers": 24, "experts": {"num_experts": 32, "top_k": 4}},
    "120b": {**_PUBLISHED, "num_layers": 36, "experts": {"num_experts": 128, "top_k": 4}},
    "toy": {
        **TOY,
        "head_dim": 32,
        "hidden_dim": 32,
        "window": 4,
        "original_length": 8,
        "experts": {"num_experts": 4, "top_k": 2},
    },
}


def gpt_oss(size: str) -> CausalLM.Config:
    """Return the config of a GPT-OSS: `20b`, `120b` or `toy`.

    Source: OpenAI 2025, arXiv:2508.10925, section 2 and table 1; epsilons and positions as in the
    published configs.
    """
    sizes = dict(of_size("gpt_oss", _GPT_OSS_SIZES, size))
    head_dim, window, experts = (sizes.pop(name) for name in ("head_dim", "window", "experts"))
    length = sizes.pop("original_length")
    cfg = replace_config(transformer(**sizes), FeedForward, _experts(experts))
    yarn = YaRN.Config(theta=150_000.0, factor=32.0, original_length=length, has_whole_bounds=False)
    cfg = update_config(
        replace_config(cfg, RoPE, lambda _: yarn),
        {
            "**.linear.has_bias": True,
            "**.out_linear.has_bias": True,
            "**.attention.head_dim": head_dim,
            "**.norm.epsilon": 1e-5,
        },
    )
    stack = cfg.decoder.stack
    turns = alternating(stack, local(stack.layer, window), stack.layer)
    return replace_config(
        update_config(cfg, {"decoder.stack": turns}), DotProductAttention, with_sinks
    )


def _experts(experts: Any) -> Any:
    """Return a function from a feed-forward to experts of its size."""
    return lambda ffn: MoE.Config(
        expert=ClampedFeedForward.Config(hidden_dim=ffn.hidden_dim),
        router=Router.Config(linear=Linear.Config()),
        **experts,
    )


def _weights(cfg: Any) -> WeightMap:
    mixture = find_config(cfg, MoE)[0].node
    count, width = mixture.num_experts, mixture.expert.hidden_dim

    def stacked(hf: str, transform: Transform, *axcore: str) -> Rule:
        whole = Chain(StackArrays(count), transform)
        return all_experts("experts.expert", axcore, f"experts.{hf}", whole, count=count)

    def by_turns(axis: int) -> Transform:
        return Chain(StackArrays(2, axis=-1), JoinAxes(width, axis=axis))

    experts = (
        stacked("gate_up_proj", by_turns(2), "gate.weight", "up.weight"),
        stacked("gate_up_proj_bias", by_turns(1), "gate.bias", "up.bias"),
        stacked("down_proj", Chain(), "down.weight"),
        stacked("down_proj_bias", Chain(), "down.bias"),
        *linear("router.linear", "router"),
    )
    return model_weights(
        *PRE_NORMS,
        *below("attention", "self_attn", ATTENTION),
        same("attention.core.sinks", "self_attn.sinks"),
        *below("feed_forward", "mlp", experts),
    )


GPT_OSS = Family(
    architecture="GptOssForCausalLM",
    template=lambda: gpt_oss("toy"),
    layers=in_turns(lambda fields: every(2)),
    config=(
        *without(SIZES, "num_hidden_layers"),
        Field("head_dim", ("**.attention.head_dim",), default=64),
        attrs.evolve(ATTENTION_BIAS, default=True),
        RopeFields(theta=150_000.0),
        window("sliding_window", 128, f"{LOCAL}.core.core.window"),
        Field("num_local_experts", ("**.feed_forward.num_experts",), alias="num_experts"),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), alias="experts_per_token"),
        Field("swiglu_alpha", ("**.expert.slope",), default=1.702),
        Field("swiglu_limit", ("**.expert.limit",), default=7.0, to_axcore=float),
        MustBe("hidden_act", ("silu",)),
        MustBe("tie_word_embeddings", (False,)),
    ),
    weights=_weights,
    irrelevant=frozenset({"experts_per_token", "initial_context_length", "router_aux_loss_coef"}),
)
