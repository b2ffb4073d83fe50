"""Qwen3-Next: three layers with a memory to one that attends, gates, and many small experts."""

from typing import Any

from axcore.config import evolve, find_config, replace_config, update_config
from axcore.interop import (
    FEED_FORWARD,
    PRE_NORMS,
    Chain,
    Concatenate,
    ConfigEntry,
    DefaultFrom,
    Family,
    Field,
    Fields,
    LayerTypes,
    MustBe,
    Rule,
    SplitAxis,
    WeightMap,
    below,
    common_value,
    every,
    linear,
    model_weights,
    same,
)
from axcore.layers import Attention, FeedForward, MoE, RMSNorm, RoPE, Router, alternating
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.gated_attention import with_gates
from axl_attention.gated_delta_net import GatedDeltaNet
from axl_attention.layers import TokenGated
from axl_attention.models.shared_maps import (
    PartialRopeFields,
    by_head,
    fused_rows,
    tied_by,
)
from axl_attention.norms import with_query_key_norm
from axl_attention.positions import PartialRotary

_QWEN3_NEXT_SIZES: Sizes = {
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
    sizes = dict(of_size("qwen3_next", _QWEN3_NEXT_SIZES, size))
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


_INNER = "decoder.stack.layers[1].attention.inner"
_BIASES = (
    f"{_INNER}.linear",
    f"{_INNER}.out_linear.linear",
    "decoder.stack.layers[1].attention.linear",
)


def _memory(cfg: GatedDeltaNet.Config) -> WeightMap:
    heads, group = cfg.num_key_heads, cfg.num_value_heads // cfg.num_key_heads
    key, value = cfg.key_dim, group * cfg.value_dim
    convolved = Concatenate((heads * key, heads * key, heads * value))
    return (
        *fused_rows(("q", "k", "v", "z"), "in_proj_qkvz", by_head(heads, key, key, value, value)),
        *fused_rows(("b", "a"), "in_proj_ba", by_head(heads, group, group)),
        Rule(
            ("conv_q.weight", "conv_k.weight", "conv_v.weight"),
            ("conv1d.weight",),
            Chain(convolved, SplitAxis(1, axis=1)),
        ),
        same("a_log", "A_log"),
        same("dt_bias", "dt_bias"),
        same("norm.weight", "norm.weight"),
        *linear("out", "out_proj"),
    )


def _weights(cfg: Any) -> WeightMap:
    heads, width = (
        common_value(cfg, f"**.attention.inner.{name}") for name in ("num_heads", "head_dim")
    )
    attention = (
        *fused_rows(("inner.q", "gate"), "q_proj", by_head(heads, width, width)),
        *linear("inner.k", "k_proj"),
        *linear("inner.v", "v_proj"),
        *linear("inner.out.linear", "o_proj"),
        same("inner.position.query_norm.weight", "q_norm.weight"),
        same("inner.position.key_norm.weight", "k_norm.weight"),
    )
    return model_weights(
        *PRE_NORMS,
        *below("attention", "self_attn", attention),
        *below("attention", "linear_attn", _memory(find_config(cfg, GatedDeltaNet)[0].node)),
        *linear("feed_forward.router.linear", "mlp.gate"),
        *linear("feed_forward.shared.gate", "mlp.shared_expert_gate"),
        *below("feed_forward.shared.inner", "mlp.shared_expert", FEED_FORWARD),
        *below("feed_forward.experts.expert.{expert}", "mlp.experts.{expert}", FEED_FORWARD),
    )


class _Chunks(ConfigEntry):
    """How many tokens are computed at once, which is free to choose and changes no number."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with chunks of the usual size."""
        return self.normal(cfg)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return no field."""
        return {}

    def normal(self, cfg: Any) -> Any:
        """Return a config with chunks of the usual size."""
        return replace_config(cfg, GatedDeltaNet, lambda old: evolve(old, chunk=64))


_MEMORY = "decoder.stack.layers[0].attention"

QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    template=lambda: qwen3_next("toy"),
    layers=LayerTypes(
        ("linear_attention", "full_attention"),
        lambda layer: not find_config(layer, GatedDeltaNet),
        lambda fields: every(fields.take("full_attention_interval", 4)),
    ),
    config=(
        Field("vocab_size", ("vocab_size",)),
        Field("hidden_size", ("dim",)),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-6, to_axcore=float),
        Field("num_attention_heads", (f"{_INNER}.num_heads",)),
        DefaultFrom(
            "num_key_value_heads",
            "**.attention.inner.num_kv_heads",
            lambda cfg: common_value(cfg, "**.attention.inner.num_heads"),
        ),
        Field("head_dim", (f"{_INNER}.head_dim",), default=256),
        PartialRopeFields(default=0.25, path=f"{_INNER}.position.inner"),
        Field("attention_bias", tuple(f"{at}.has_bias" for at in _BIASES), default=False),
        Field("linear_conv_kernel_dim", (f"{_MEMORY}.conv.width",), default=4),
        Field("linear_key_head_dim", (f"{_MEMORY}.key_dim",), default=128),
        Field("linear_value_head_dim", (f"{_MEMORY}.value_dim",), default=128),
        Field("linear_num_key_heads", (f"{_MEMORY}.num_key_heads",), default=16),
        Field("linear_num_value_heads", (f"{_MEMORY}.num_value_heads",), default=32),
        Field("moe_intermediate_size", ("**.expert.hidden_dim",)),
        Field("shared_expert_intermediate_size", ("**.shared.inner.hidden_dim",)),
        Field("num_experts", ("**.feed_forward.num_experts",), alias="num_local_experts"),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",)),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=True),
        MustBe("hidden_act", ("silu",)),
        MustBe("decoder_sparse_step", (1,)),
        MustBe("mlp_only_layers", ([], None)),
        MustBe("use_sliding_window", (False,), is_written=False),
        tied_by(),
        _Chunks(),
    ),
    weights=_weights,
    irrelevant=frozenset({"intermediate_size", "router_aux_loss_coef"}),
    mtp_tensors=(r"^mtp\.",),
)
