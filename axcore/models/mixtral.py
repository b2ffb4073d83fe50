"""The Mixtral family: a Mistral whose every feed-forward is eight experts, two for each token."""

from axcore.config import replace_config, update_config
from axcore.layers import FeedForward, MoE
from axcore.models.causal_lm import CausalLM
from axcore.models.sizes import TOY, Sizes, of_size
from axcore.models.transformer import transformer

MIXTRAL_SIZES: Sizes = {
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


def mixtral(size: str) -> CausalLM.Config:
    """Returns the config of a Mixtral: `8x7b`, `8x22b` or `toy`.

    Source: Jiang et al. 2024, arXiv:2401.04088, table 1.
    """
    cfg = transformer(**of_size("mixtral", MIXTRAL_SIZES, size))
    cfg = update_config(cfg, {"**.norm.epsilon": 1e-5, "**.position.theta": 1_000_000.0})
    return replace_config(
        cfg, FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=8, top_k=2)
    )
