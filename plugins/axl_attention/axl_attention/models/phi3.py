"""Phi-3 and Phi-4: Llamas of Microsoft's sizes; small ones have a window, Phi-4-mini long rows."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.layers import RoPE
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.longrope import LongRoPE, longrope_attention_factor
from axl_attention.partial_rotary import PartialRotary

_LARGE = {"dim": 5120, "num_layers": 40, "num_heads": 40, "num_kv_heads": 10, "hidden_dim": 17_920}

PHI3_SIZES: Sizes = {
    "3-mini": {
        "vocab_size": 32_064,
        "dim": 3072,
        "num_layers": 32,
        "num_heads": 32,
        "hidden_dim": 8192,
    },
    "3-medium": {"vocab_size": 32_064, **_LARGE},
    "4": {"vocab_size": 100_352, **_LARGE},
    "4-mini": {
        "vocab_size": 200_064,
        "dim": 3072,
        "num_layers": 32,
        "num_heads": 24,
        "num_kv_heads": 8,
        "hidden_dim": 8192,
    },
    "toy": TOY,
}

_WINDOWS = {"3-mini": 2047, "3-medium": 2047, "4-mini": 262_144, "toy": 4}
"""Tokens that a query sees, its own included."""

# fmt: off
_LONG_FACTORS = (
    1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649,
    2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845,
    5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158,
    11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105,
    25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71,
    32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77,
)
# fmt: on
"""Of Phi-4-mini, for the pairs of three quarters of a head."""


def phi3(size: str) -> CausalLM.Config:
    """Return a Phi-3 for 4096 tokens, or a Phi-4: `3-mini`, `3-medium`, `4`, `4-mini` or `toy`.

    Source: Abdin et al. 2024, arXiv:2404.14219, section 2, and arXiv:2412.08905, section 3;
    Microsoft 2025, arXiv:2503.01743, section 2; windows and factors as in the configs published
    with the weights.
    """
    window = _WINDOWS.get(size)
    cfg = update_config(
        transformer(**of_size("phi3", PHI3_SIZES, size)),
        {
            "**.norm.epsilon": 1e-5,
            "**.position.theta": 250_000.0 if size == "4" else 10_000.0,
            "**.core.window": window and (window - 1, 0),
        },
    )
    return _for_long_rows(cfg) if size == "4-mini" else cfg


def _for_long_rows(cfg: Any) -> Any:
    """Return Phi-4-mini's tied head, and its positions of three quarters of a head."""
    pairs = len(_LONG_FACTORS)
    position = LongRoPE.Config(
        theta=10_000.0,
        short_factors=(1.0,) * pairs,
        long_factors=_LONG_FACTORS,
        attention_factor=longrope_attention_factor(131_072 / 4096, 4096),
    )
    cfg = replace_config(cfg, RoPE, PartialRotary.Config(fraction=0.75, inner=position))
    return replace_config(cfg, UntiedHead, TiedHead.Config())
