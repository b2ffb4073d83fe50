"""What Gemma 2 and Gemma 3 have in common."""

from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.layers import PreNorm
from axcore.models import CausalLM, TiedHead, UntiedHead, transformer
from axl_attention.sandwich_norm import in_place_of as with_sandwich_norm


def gemma(*, head_dim: int, scale: float | None = None, **sizes: Any) -> CausalLM.Config:
    """Returns a transformer with norms around each branch, scaled embeddings and a tied head.

    Args:
        head_dim: Size of a head.
        scale: Factor on the products of queries and keys; `1 / sqrt(head_dim)` where None.
        **sizes: Arguments of `transformer`.
    """
    cfg = replace_config(transformer(**sizes), PreNorm, with_sandwich_norm)
    cfg = replace_config(cfg, UntiedHead, TiedHead.Config())
    return update_config(
        cfg,
        {
            "**.norm.weight_offset": 1.0,
            "**.embedding.scale": cfg.dim**0.5,
            "**.feed_forward.activation": "gelu_tanh",
            "**.attention.head_dim": head_dim,
            "**.core.scale": scale,
        },
    )


def local(layer: Any, window: int) -> Any:
    """Returns a layer each token of which sees the last `window` tokens, itself counted."""
    core = evolve(layer.attention.core, window=(window - 1, None))
    return evolve(layer, attention=evolve(layer.attention, core=core))
