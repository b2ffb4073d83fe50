"""SmolLM3: a Llama in which every fourth layer knows no positions."""

from axcore.config import replace_config, update_config
from axcore.layers import NoPosition, RoPE, alternating
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer

SMOLLM3_SIZES: Sizes = {
    "3b": {
        "vocab_size": 128_256,
        "dim": 2048,
        "num_layers": 36,
        "num_heads": 16,
        "num_kv_heads": 4,
        "hidden_dim": 11_008,
        "interval": 4,
    },
    "toy": {**TOY, "interval": 2},
}


def smollm3(size: str) -> CausalLM.Config:
    """Return the config of a SmolLM3: `3b` or `toy`.

    Source: Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner"; layers
    without positions as in Yang et al. 2025, arXiv:2501.18795; sizes as in the config published
    with the weights.
    """
    sizes = dict(of_size("smollm3", SMOLLM3_SIZES, size))
    interval = sizes.pop("interval")
    cfg = replace_config(transformer(**sizes), UntiedHead, TiedHead.Config())
    cfg = update_config(cfg, {"**.position.theta": 5_000_000.0})
    stack = cfg.decoder.stack
    unaware = replace_config(stack.layer, RoPE, NoPosition.Config())
    turns = alternating(stack, *[stack.layer] * (interval - 1), unaware)
    return update_config(cfg, {"decoder.stack": turns})
