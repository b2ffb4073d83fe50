"""Qwen3-Next: three layers with a memory to one that attends, gates, and many small experts."""

from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.layers import Attention, FeedForward, MoE, RMSNorm, RoPE, Router, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.gated_attention import in_place_of as with_gates
from axl_attention.gated_delta_net import GatedDeltaNet
from axl_attention.partial_rotary import PartialRotary
from axl_attention.query_key_norm import in_place_of as with_query_key_norm
from axl_attention.token_gated import TokenGated

QWEN3_NEXT_SIZES: Sizes = {
    "80b-a3b": {
        "vocab_size": 151_936,
        "dim": 2048,
        "num_layers": 48,
        "num_heads": 16,
        "num_kv_heads": 2,
        "head_dim": 256,
        "hidden_dim": 512,
        "turn": 4,
        "experts": {"num_experts": 512, "top_k": 10},
        "memory": {"num_key_heads": 16, "num_value_heads": 32},
    },
    "toy": {
        **TOY,
        "num_layers": 4,
        "head_dim": 32,
        "hidden_dim": 32,
        "turn": 2,
        "experts": {"num_experts": 4, "top_k": 2},
        "memory": {
            "num_key_heads": 2,
            "num_value_heads": 4,
            "key_dim": 8,
            "value_dim": 16,
            "chunk": 8,
        },
    },
}
"""`hidden_dim` is that of an expert; the last layer of each `turn` attends."""


def qwen3_next(size: str) -> CausalLM.Config:
    """Return the config of a Qwen3-Next, without what predicts a second token: `80b-a3b` or `toy`.

    Source: Qwen Team 2025, "Qwen3-Next: towards ultimate training and inference efficiency"; sizes
    as in the config published with the weights.
    """
    sizes = dict(of_size("qwen3_next", QWEN3_NEXT_SIZES, size))
    names = ("head_dim", "turn", "experts", "memory")
    head_dim, turn, experts, memory = map(sizes.pop, names)
    cfg = replace_config(transformer(**sizes), FeedForward, _experts(experts))
    cfg = update_config(cfg, {"**.attention.head_dim": head_dim, "**.position.theta": 10_000_000.0})
    cfg = replace_config(cfg, RoPE, lambda rope: PartialRotary.Config(fraction=0.25, inner=rope))
    cfg = replace_config(cfg, Attention, with_query_key_norm)
    cfg = replace_config(cfg, RMSNorm, lambda norm: evolve(norm, weight_offset=1.0))
    stack = cfg.decoder.stack
    attending = replace_config(stack.layer, Attention, with_gates)
    remembering = evolve(stack.layer, attention=GatedDeltaNet.Config(**memory))
    turns = alternating(stack, *[remembering] * (turn - 1), attending)
    return update_config(cfg, {"decoder.stack": turns})


def _experts(experts: Any) -> Any:
    """Return a function from a feed-forward to experts of its size, one of which all share."""
    return lambda ffn: MoE.Config(
        expert=ffn,
        shared=TokenGated.Config(inner=ffn),
        router=Router.Config(balance_loss=0.001, balance_over="batch"),
        **experts,
    )
