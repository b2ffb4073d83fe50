"""The Mistral family: grouped queries, and attention to the last 4,096 tokens."""

from axcore.config import update_config
from axcore.models.causal_lm import CausalLM
from axcore.models.sizes import TOY, Sizes, of_size
from axcore.models.transformer import transformer

MISTRAL_SIZES: Sizes = {
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
    """Returns the config of a Mistral: `7b` (version 0.1) or `toy`.

    Source: Jiang et al. 2023, arXiv:2310.06825, table 1.
    """
    cfg = transformer(**of_size("mistral", MISTRAL_SIZES, size))
    return update_config(cfg, {"**.norm.epsilon": 1e-5, "**.core.window": (WINDOW - 1, 0)})
