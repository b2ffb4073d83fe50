"""Gemma 1, and what the later Gemmas have of it."""

from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer

GEMMA_SIZES: Sizes = {
    "2b": {
        "vocab_size": 256_000,
        "dim": 2048,
        "num_layers": 18,
        "num_heads": 8,
        "num_kv_heads": 1,
        "head_dim": 256,
        "hidden_dim": 16_384,
    },
    "7b": {
        "vocab_size": 256_000,
        "dim": 3072,
        "num_layers": 28,
        "num_heads": 16,
        "head_dim": 256,
        "hidden_dim": 24_576,
    },
    "toy": {**TOY, "head_dim": 32},
}


def gemma(size: str) -> CausalLM.Config:
    """Return the config of a Gemma 1: `2b`, `7b` or `toy`.

    Source: Gemma Team 2024, arXiv:2403.08295, table 1; 256,000 tokens as in the published weights.
    """
    return gemma_like(**of_size("gemma", GEMMA_SIZES, size))


def gemma_like(*, head_dim: int, scale: float | None = None, **sizes: Any) -> CausalLM.Config:
    """Return a transformer with scaled embeddings, a tied head, and norms stored less one.

    Args:
        head_dim: Size of a head.
        scale: Factor on the products of queries and keys; `1 / sqrt(head_dim)` where None.
        **sizes: Arguments of `transformer`.
    """
    cfg = replace_config(transformer(**sizes), UntiedHead, TiedHead.Config())
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
    """Return a layer each token of which sees the last `window` tokens, itself counted."""
    core = evolve(layer.attention.core, window=(window - 1, None))
    return evolve(layer, attention=evolve(layer.attention, core=core))
