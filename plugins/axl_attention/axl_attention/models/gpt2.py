"""GPT-2: learned positions, layer norms and biases everywhere, and a tied head."""

from axcore.config import replace_config, update_config
from axcore.layers import (
    Embedding,
    FeedForward,
    LayerNorm,
    NoPosition,
    PlainFeedForward,
    RMSNorm,
    RoPE,
)
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.learned_position import LearnedPosition

_VOCABULARY = {"vocab_size": 50_257}

GPT2_SIZES: Sizes = {
    "small": {"dim": 768, "num_layers": 12, "num_heads": 12, "hidden_dim": 3072, **_VOCABULARY},
    "medium": {"dim": 1024, "num_layers": 24, "num_heads": 16, "hidden_dim": 4096, **_VOCABULARY},
    "large": {"dim": 1280, "num_layers": 36, "num_heads": 20, "hidden_dim": 5120, **_VOCABULARY},
    "xl": {"dim": 1600, "num_layers": 48, "num_heads": 25, "hidden_dim": 6400, **_VOCABULARY},
    "toy": {**TOY, "num_kv_heads": None},
}


def gpt2(size: str) -> CausalLM.Config:
    """Return the config of a GPT-2: `small`, `medium`, `large`, `xl` or `toy`.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3;
    sizes as in the configs published with the weights.
    """
    cfg = transformer(**of_size("gpt2", GPT2_SIZES, size))
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config(activation="gelu_tanh")),
        (RoPE, NoPosition.Config()),
        (Embedding, lambda old: LearnedPosition.Config(max_length=1024, embedding=old)),
        (UntiedHead, TiedHead.Config()),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(cfg, {"**.linear.has_bias": True, "**.out_linear.has_bias": True})
