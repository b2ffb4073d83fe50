"""Phi-3 and Phi-4: Llamas of Microsoft's sizes; the small Phi-3 has a window."""

from axcore.config import update_config
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer

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
    "toy": TOY,
}

_WINDOWS = {"3-mini": 2047, "3-medium": 2047, "toy": 4}
"""Tokens that a query sees, its own included."""


def phi3(size: str) -> CausalLM.Config:
    """Returns the config of a Phi-3 for 4096 tokens or of Phi-4: `3-mini`, `3-medium`, `4`, `toy`.

    Source: Abdin et al. 2024, arXiv:2404.14219, section 2, and arXiv:2412.08905, section 3; windows
    as in the configs published with the weights.
    """
    window = _WINDOWS.get(size)
    return update_config(
        transformer(**of_size("phi3", PHI3_SIZES, size)),
        {
            "**.norm.epsilon": 1e-5,
            "**.position.theta": 250_000.0 if size == "4" else 10_000.0,
            "**.core.window": window and (window - 1, 0),
        },
    )
