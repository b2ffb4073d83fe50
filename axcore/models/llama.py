"""The Llama families: what `transformer` builds, at their sizes."""

from axcore.config import update_config
from axcore.models.causal_lm import CausalLM
from axcore.models.sizes import TOY, Sizes, of_size
from axcore.models.transformer import transformer

LLAMA2_SIZES: Sizes = {
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

LLAMA3_SIZES: Sizes = {
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
    """Returns the config of a Llama 2: `7b`, `13b`, `70b` or `toy`.

    Source: Touvron et al. 2023, arXiv:2307.09288, section 2.2.
    """
    cfg = transformer(**of_size("llama2", LLAMA2_SIZES, size))
    return update_config(cfg, {"**.norm.epsilon": 1e-5})


def llama3(size: str) -> CausalLM.Config:
    """Returns the config of a Llama 3: `8b`, `70b` or `toy`.

    Source: Grattafiori et al. 2024, arXiv:2407.21783, table 3.
    """
    cfg = transformer(**of_size("llama3", LLAMA3_SIZES, size))
    return update_config(cfg, {"**.norm.epsilon": 1e-5, "**.position.theta": 500_000.0})
