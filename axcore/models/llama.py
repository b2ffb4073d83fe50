"""The Llama families, which `transformer` builds, and how published files describe them."""

from typing import Any

from axcore.config import update_config
from axcore.interop import (
    ATTENTION_BIAS,
    AXLEARN,
    HEAD_DIM,
    LLAMA_KEYS,
    LLAMA_WEIGHTS,
    SIZES,
    Choice,
    ConfigEntry,
    Family,
    Field,
    Fixed,
    GGUFEntry,
    GGUFMap,
    GGUFRope,
    RopeFields,
    activation,
    interleaved_heads,
    maxtext,
)
from axcore.models.causal_lm import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer

_LLAMA2_SIZES: Sizes = {
    "7b": {
        "vocab_size": 32_000,
        "dim": 4096,
        "num_layers": 32,
        "num_heads": 32,
        "hidden_dim": 11_008,
    },
    "13b": {
        "vocab_size": 32_000,
        "dim": 5120,
        "num_layers": 40,
        "num_heads": 40,
        "hidden_dim": 13_824,
    },
    "70b": {
        "vocab_size": 32_000,
        "dim": 8192,
        "num_layers": 80,
        "num_heads": 64,
        "num_kv_heads": 8,
        "hidden_dim": 28_672,
    },
    "toy": TOY,
}

_LLAMA3_SIZES: Sizes = {
    "8b": {
        "vocab_size": 128_256,
        "dim": 4096,
        "num_layers": 32,
        "num_heads": 32,
        "num_kv_heads": 8,
        "hidden_dim": 14_336,
    },
    "70b": {
        "vocab_size": 128_256,
        "dim": 8192,
        "num_layers": 80,
        "num_heads": 64,
        "num_kv_heads": 8,
        "hidden_dim": 28_672,
    },
    "toy": TOY,
}


def llama2(size: str) -> CausalLM.Config:
    """Return the config of a Llama 2: `7b`, `13b`, `70b` or `toy`.

    Source: Touvron et al. 2023, arXiv:2307.09288, section 2.2.
    """
    cfg = transformer(**of_size("llama2", _LLAMA2_SIZES, size))
    return update_config(cfg, {"**.norm.epsilon": 1e-5})


def llama3(size: str) -> CausalLM.Config:
    """Return the config of a Llama 3: `8b`, `70b` or `toy`.

    Source: Grattafiori et al. 2024, arXiv:2407.21783, table 3.
    """
    cfg = transformer(**of_size("llama3", _LLAMA3_SIZES, size))
    return update_config(cfg, {"**.norm.epsilon": 1e-5, "**.position.theta": 500_000.0})


_HEADS = {False: UntiedHead.Config(), True: TiedHead.Config()}

LLAMA_LIKE: tuple[ConfigEntry, ...] = (
    *SIZES,
    activation("hidden_act", "silu"),
    Choice("tie_word_embeddings", "head", _HEADS, False),
    RopeFields(),
)


def llama_gguf(*more: GGUFEntry) -> GGUFMap:
    """Return how llama.cpp has models like a Llama, of which it rotates neighbouring rows.

    Args:
        *more: What becomes of fields that not all of them have.
    """
    return GGUFMap(
        architecture="llama",
        entries=(*LLAMA_KEYS, GGUFRope(("linear", "llama3", "yarn")), *more),
        changes=(
            (r"\.q_proj\.", interleaved_heads("num_attention_heads")),
            (r"\.k_proj\.", interleaved_heads("num_key_value_heads")),
        ),
    )


def smallest() -> Any:
    """Return a transformer whose sizes a config map then sets."""
    return transformer(vocab_size=1, dim=1, num_layers=1, num_heads=1, hidden_dim=1)


LLAMA = Family(
    architecture="LlamaForCausalLM",
    template=smallest,
    config=(
        *LLAMA_LIKE,
        HEAD_DIM,
        ATTENTION_BIAS,
        Field("mlp_bias", ("**.feed_forward.linear.has_bias",), default=False),
    ),
    weights=lambda cfg: LLAMA_WEIGHTS,
    gguf=llama_gguf(
        Fixed("attention_bias", False, True, tensor="blk.0.attn_q.bias"),
        Fixed("mlp_bias", False, True, tensor="blk.0.ffn_gate.bias"),
    ),
    layouts=(maxtext(scales_queries=True), AXLEARN),
)
