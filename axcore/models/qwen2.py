"""Qwen2 and Qwen2.5: biases on queries, keys and values; the small ones share their embedding."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.interop import (
    LLAMA_KEYS,
    LLAMA_WEIGHTS,
    EveryLayer,
    Family,
    Fixed,
    GGUFMap,
    GGUFRope,
    MustBe,
    maxtext,
)
from axcore.models.causal_lm import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axcore.models.llama import LLAMA_LIKE, smallest

_QWEN2_SIZES: Sizes = {
    "0.5b": {
        "vocab_size": 151_936,
        "dim": 896,
        "num_layers": 24,
        "num_heads": 14,
        "num_kv_heads": 2,
        "hidden_dim": 4864,
    },
    "1.5b": {
        "vocab_size": 151_936,
        "dim": 1536,
        "num_layers": 28,
        "num_heads": 12,
        "num_kv_heads": 2,
        "hidden_dim": 8960,
    },
    "7b": {
        "vocab_size": 152_064,
        "dim": 3584,
        "num_layers": 28,
        "num_heads": 28,
        "num_kv_heads": 4,
        "hidden_dim": 18_944,
    },
    "72b": {
        "vocab_size": 152_064,
        "dim": 8192,
        "num_layers": 80,
        "num_heads": 64,
        "num_kv_heads": 8,
        "hidden_dim": 29_568,
    },
    "toy": TOY,
}

TIED = ("0.5b", "1.5b")
"""Sizes whose head is their embedding."""


def qwen2(size: str) -> CausalLM.Config:
    """Return the config of a Qwen2: `0.5b`, `1.5b`, `7b`, `72b` or `toy`.

    Source: Yang et al. 2024, arXiv:2407.10671, table 1; the epsilon of norms as in the configs
    published with the weights, where that of `72b` is another.
    """
    cfg = transformer(**of_size("qwen2", _QWEN2_SIZES, size))
    cfg = update_config(
        cfg,
        {
            "**.attention.linear.has_bias": True,
            "**.position.theta": 1_000_000.0,
            "**.norm.epsilon": 1e-5 if size == "72b" else 1e-6,
        },
    )
    return replace_config(cfg, UntiedHead, TiedHead.Config()) if size in TIED else cfg


def _template() -> Any:
    return update_config(smallest(), {"**.attention.linear.has_bias": True})


QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    template=_template,
    config=(
        *LLAMA_LIKE,
        MustBe("use_sliding_window", (False,)),
        EveryLayer("layer_types", "full_attention"),
    ),
    weights=lambda cfg: LLAMA_WEIGHTS,
    irrelevant=frozenset({"max_window_layers", "sliding_window"}),
    gguf=GGUFMap(
        architecture="qwen2",
        entries=(*LLAMA_KEYS, GGUFRope(), Fixed("use_sliding_window", False)),
    ),
    layouts=(maxtext(),),
)
