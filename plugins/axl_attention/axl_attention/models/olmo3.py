"""OLMo 3: OLMo 2 with three local layers to one global, whose positions are stretched."""

from axcore.config import replace_config, update_config
from axcore.layers import RoPE, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.models.gemma import local
from axl_attention.models.olmo2 import with_reordered_norms
from axl_attention.yarn import YaRN, yarn_attention_factor

_THETA = 500_000.0
_PUBLISHED = {"vocab_size": 100_278, "window": 4096, "interval": 4}

OLMO3_SIZES: Sizes = {
    "7b": {"dim": 4096, "num_layers": 32, "num_heads": 32, "hidden_dim": 11_008, **_PUBLISHED},
    "32b": {
        "dim": 5120,
        "num_layers": 64,
        "num_heads": 40,
        "num_kv_heads": 8,
        "hidden_dim": 27_648,
        **_PUBLISHED,
    },
    "toy": {**TOY, "window": 4, "interval": 2},
}


def olmo3(size: str) -> CausalLM.Config:
    """Return the config of an OLMo 3: `7b`, `32b` or `toy`.

    Source: OLMo Team 2025, "Olmo 3", arXiv:2512.13961, section 3.2; sizes as in the configs
    published with the weights.
    """
    sizes = dict(of_size("olmo3", OLMO3_SIZES, size))
    window, interval = sizes.pop("window"), sizes.pop("interval")
    cfg = with_reordered_norms(transformer(**sizes))
    cfg = update_config(cfg, {"**.position.theta": _THETA})
    stack, factor = cfg.decoder.stack, 8.0
    far = YaRN.Config(
        theta=_THETA,
        factor=factor,
        original_length=8192,
        attention_factor=yarn_attention_factor(factor),
    )
    near, wide = local(stack.layer, window), replace_config(stack.layer, RoPE, far)
    turns = alternating(stack, *[near] * (interval - 1), wide)
    return update_config(cfg, {"decoder.stack": turns})
