"""GLM-4, and GLM-4-0414: rotary positions for half of each head, and norms around each branch."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.layers import PreNorm, RoPE
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.partial_rotary import in_place_of as with_partial_rotary
from axl_attention.sandwich_norm import in_place_of as with_sandwich_norm

_9B = {
    "vocab_size": 151_552,
    "dim": 4096,
    "num_layers": 40,
    "num_heads": 32,
    "num_kv_heads": 2,
    "hidden_dim": 13_696,
}
GLM_SIZES: Sizes = {"9b": _9B, "toy": TOY}
GLM4_SIZES: Sizes = {
    "9b": _9B,
    "32b": {
        "vocab_size": 151_552,
        "dim": 6144,
        "num_layers": 61,
        "num_heads": 48,
        "num_kv_heads": 2,
        "hidden_dim": 23_040,
        "has_bias": False,
    },
    "toy": TOY,
}


def glm(size: str) -> CausalLM.Config:
    """Return the config of a GLM-4: `9b` or `toy`.

    Source: Team GLM 2024, arXiv:2406.12793, section 2; sizes as in the published configs.
    """
    return _glm(**of_size("glm", GLM_SIZES, size), epsilon=1.5625e-07)


def glm4(size: str) -> CausalLM.Config:
    """Return the config of a GLM-4-0414: `9b`, `32b` or `toy`.

    Source: configs that Z.ai published with the weights, 2025.
    """
    cfg = _glm(**of_size("glm4", GLM4_SIZES, size), epsilon=1e-5)
    return replace_config(cfg, PreNorm, with_sandwich_norm)


def _glm(*, epsilon: float, has_bias: bool = True, **sizes: Any) -> Any:
    cfg = replace_config(transformer(**sizes), RoPE, with_partial_rotary)
    return update_config(
        cfg, {"**.attention.linear.has_bias": has_bias, "**.norm.epsilon": epsilon}
    )
