"""The Mixtral family: a Mistral whose every feed-forward is eight experts, two for each token."""

from axcore.config import replace_config, update_config
from axcore.layers import FeedForward, MoE, Router
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
_BALANCE_LOSS = {"8x7b": 0.02, "8x22b": 0.001}
"""Coefficients as published, of one loss over all layers whose least value is `top_k`. Here each
layer has a loss, and 1 is its least value."""


def mixtral(size: str) -> CausalLM.Config:
    """Returns the config of a Mixtral: `8x7b`, `8x22b` or `toy`.

    Source: Jiang et al. 2024, arXiv:2401.04088, table 1.
    """
    sizes, router = of_size("mixtral", MIXTRAL_SIZES, size), Router.Config()
    if size in _BALANCE_LOSS:
        router = Router.Config(balance_loss=_BALANCE_LOSS[size] * 2 / sizes["num_layers"])
    cfg = transformer(**sizes)
    cfg = update_config(cfg, {"**.norm.epsilon": 1e-5, "**.position.theta": 1_000_000.0})
    return replace_config(
        cfg,
        FeedForward,
        lambda ffn: MoE.Config(expert=ffn, router=router, num_experts=8, top_k=2),
    )
