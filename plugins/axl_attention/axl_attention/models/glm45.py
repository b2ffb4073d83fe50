"""GLM-4.5: many query heads of half-rotated dimensions, and experts after the first layers."""

from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.layers import Attention, FeedForward, MoE, RoPE, Router, Sequence
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.partial_rotary import in_place_of as with_partial_rotary
from axl_attention.query_key_norm import in_place_of as with_query_key_norm

_PUBLISHED = {"vocab_size": 151_552, "num_heads": 96, "num_kv_heads": 8, "head_dim": 128}
_TOY = {**TOY, "num_layers": 3, "head_dim": 32, "expert_dim": 32, "num_dense": 1, "scale": 2.5}

GLM45_SIZES: Sizes = {
    "355b-a32b": {
        **_PUBLISHED,
        "dim": 5120,
        "num_layers": 92,
        "hidden_dim": 12_288,
        "expert_dim": 1536,
        "num_dense": 3,
        "scale": 2.5,
        "experts": {"num_experts": 160, "top_k": 8},
    },
    "air": {
        **_PUBLISHED,
        "dim": 4096,
        "num_layers": 46,
        "hidden_dim": 10_944,
        "expert_dim": 1408,
        "num_dense": 1,
        "scale": 1.0,
        "experts": {"num_experts": 128, "top_k": 8},
    },
    "toy": {**_TOY, "experts": {"num_experts": 4, "top_k": 2}},
}


def glm45(size: str) -> CausalLM.Config:
    """Return the config of a GLM-4.5: `355b-a32b`, `air` or `toy`; it predicts no second token.

    Air does not normalise queries and keys.

    Source: GLM-4.5 Team 2025, arXiv:2508.06471, section 2.1 and table 1; routing as in the
    published configs.
    """
    sizes = dict(of_size("glm45", GLM45_SIZES, size))
    names = ("head_dim", "expert_dim", "num_dense", "scale", "experts")
    head_dim, expert_dim, num_dense, scale, experts = map(sizes.pop, names)
    cfg = update_config(
        replace_config(transformer(**sizes), RoPE, with_partial_rotary),
        {
            "**.attention.head_dim": head_dim,
            "**.attention.linear.has_bias": True,
            "**.norm.epsilon": 1e-5,
            "**.position.inner.theta": 1_000_000.0,
        },
    )
    if size != "air":
        cfg = replace_config(cfg, Attention, with_query_key_norm)
        cfg = update_config(cfg, {"**.norm.epsilon": 1e-5})
    stack = cfg.decoder.stack
    mixed = replace_config(stack.layer, FeedForward, _experts(expert_dim, scale, experts))
    first = evolve(stack, num_layers=num_dense)
    rest = evolve(stack, num_layers=stack.num_layers - num_dense, layer=mixed)
    return update_config(cfg, {"decoder.stack": Sequence.Config(layers=(first, rest))})


def _experts(width: int, scale: float, experts: Any) -> Any:
    """Return a function from a feed-forward to experts, one of which all share."""
    router = Router.Config(score="sigmoid", scale=scale, bias_rate=0.001, balance_loss=0.0001)

    def mixture(ffn: Any) -> Any:
        expert = evolve(ffn, hidden_dim=width)
        return MoE.Config(expert=expert, shared=expert, router=router, **experts)

    return mixture
