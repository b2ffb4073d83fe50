"""Llama 4, the part for text: three layers in chunks to one that sees all, and weighed experts."""

from typing import Any

from axcore.config import evolve, replace_config, update_config
from axcore.layers import Attention, FeedForward, MoE, Router, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.chunked import in_place_of as chunked
from axl_attention.input_scaled import InputScaled
from axl_attention.llama3_rope import Llama3RoPE
from axl_attention.temperature_tuning import TemperatureTuning
from axl_attention.unit_query_key import UnitQueryKey

_TURN = 4
"""Layers of a turn, of which the last one sees all tokens and no positions."""

_PUBLISHED = {
    "vocab_size": 202_048,
    "dim": 5120,
    "num_layers": 48,
    "num_heads": 40,
    "num_kv_heads": 8,
    "head_dim": 128,
    "hidden_dim": 16_384,
    "expert_dim": 8192,
    "chunk": 8192,
    "interval": 8192,
}
LLAMA4_SIZES: Sizes = {
    "scout": {**_PUBLISHED, "num_experts": 16, "every": 1, "stretched_from": 8192},
    "maverick": {**_PUBLISHED, "num_experts": 128, "every": 2, "stretched_from": None},
    "toy": {
        **TOY,
        "num_layers": 4,
        "head_dim": 32,
        "expert_dim": 32,
        "chunk": 6,
        "interval": 4,
        "num_experts": 4,
        "every": 2,
        "stretched_from": 8,
    },
}
"""`every` second layer of Maverick has experts; `hidden_dim` is that of the others."""


def llama4(size: str) -> CausalLM.Config:
    """Return the config of a Llama 4, without what sees images: `scout`, `maverick` or `toy`.

    Only those whose positions are stretched normalise queries and keys.

    Source: Meta 2025, "The Llama 4 herd"; the configs published with the weights.
    """
    sizes = dict(of_size("llama4", LLAMA4_SIZES, size))
    names = ("head_dim", "expert_dim", "chunk", "interval", "num_experts", "every")
    head_dim, expert_dim, chunk, interval, num_experts, every = map(sizes.pop, names)
    length = sizes.pop("stretched_from")
    cfg = update_config(
        transformer(**sizes),
        {
            "**.attention.head_dim": head_dim,
            "**.norm.epsilon": 1e-5,
            "**.position.theta": 500_000.0,
        },
    )
    stack = cfg.decoder.stack
    near = replace_config(stack.layer, Attention, _local(chunk, length))
    wide = update_config(
        stack.layer, {"attention.position": TemperatureTuning.Config(interval=interval)}
    )
    turn = [
        replace_config(layer, FeedForward, _experts(expert_dim, num_experts))
        if (i + 1) % every == 0
        else layer
        for i, layer in enumerate([near] * (_TURN - 1) + [wide])
    ]
    return update_config(cfg, {"decoder.stack": alternating(stack, *turn)})


def _local(chunk: int, length: int | None) -> Any:
    """Return a function from an attention to one within chunks."""

    def local(old: Any) -> Any:
        position = old.position
        if length is not None:
            stretched = Llama3RoPE.Config(theta=position.theta, original_length=length)
            position = UnitQueryKey.Config(inner=stretched)
        return evolve(old, position=position, core=evolve(chunked(old.core), chunk=chunk))

    return local


def _experts(width: int, count: int) -> Any:
    """Return a function from a feed-forward to experts, each as wide as the shared one."""

    def experts(ffn: Any) -> Any:
        expert = evolve(ffn, hidden_dim=width)
        return MoE.Config(
            expert=expert,
            shared=expert,
            num_experts=count,
            top_k=1,
            router=Router.Config(score="sigmoid", is_normalized=False, balance_loss=0.001),
            dispatch=InputScaled.Config(),
        )

    return experts
