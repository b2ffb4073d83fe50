"""GPT-OSS: sinks, every second layer local, and experts with biases and clamped units."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.layers import DotProductAttention, FeedForward, Linear, MoE, RoPE, Router, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.clamped_feed_forward import ClampedFeedForward
from axl_attention.models.gemma import local
from axl_attention.sinks import in_place_of as with_sinks
from axl_attention.yarn import YaRN

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
GPT_OSS_SIZES: Sizes = {
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
    sizes = dict(of_size("gpt_oss", GPT_OSS_SIZES, size))
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
