"""MiniMax-M2: many experts that a sigmoid chooses, and all heads of queries and keys normalised."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.interop import (
    PRE_NORMS,
    SIZES,
    ConfigEntry,
    EveryLayer,
    Family,
    Field,
    Fields,
    MustBe,
    activation,
    below,
    linear,
    model_weights,
    same,
)
from axcore.layers import Attention, FeedForward, MoE, RoPE, Router
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.models.olmo import NORMED_ATTENTION
from axl_attention.models.shared_maps import NoPadding, PartialRopeFields, head_dim_of, tied_by
from axl_attention.norms import with_normed_linear
from axl_attention.positions import with_partial_rotary

_MINIMAX_M2_SIZES: Sizes = {
    "230b-a10b": {
        "vocab_size": 200_064,
        "dim": 3072,
        "num_layers": 62,
        "num_heads": 48,
        "num_kv_heads": 8,
        "head_dim": 128,
        "hidden_dim": 1536,
        "experts": {"num_experts": 256, "top_k": 8},
    },
    "toy": {
        **TOY,
        "head_dim": 32,
        "hidden_dim": 32,
        "experts": {"num_experts": 4, "top_k": 2},
    },
}
"""`hidden_dim` is that of one expert."""


def minimax_m2(size: str) -> CausalLM.Config:
    """Return the config of a MiniMax-M2: `230b-a10b` or `toy`; it predicts no further tokens.

    Source: the config that MiniMax published with the weights, 2025.
    """
    sizes = dict(of_size("minimax_m2", _MINIMAX_M2_SIZES, size))
    head_dim, experts = sizes.pop("head_dim"), sizes.pop("experts")
    router = Router.Config(score="sigmoid", bias_rate=0.001, balance_loss=0.0001)
    cfg = replace_config(transformer(**sizes), RoPE, with_partial_rotary)
    cfg = replace_config(cfg, Attention, with_normed_linear)
    cfg = replace_config(
        cfg, FeedForward, lambda ffn: MoE.Config(expert=ffn, router=router, **experts)
    )
    return update_config(
        cfg, {"**.attention.head_dim": head_dim, "**.position.inner.theta": 5_000_000.0}
    )


class _RotaryDim(ConfigEntry):
    """`rotary_dim`, the dimensions of a head that have positions, and the fields of these."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions."""
        rotated, head_dim = fields.take("rotary_dim", None), head_dim_of(cfg)
        share = {} if rotated is None else {"partial_rotary_factor": rotated / head_dim}
        inner = Fields({**share, **fields.values})
        cfg = PartialRopeFields().read(cfg, inner)
        fields.read |= inner.read
        return cfg

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        values = PartialRopeFields().write(cfg)
        rotated = int(values.pop("partial_rotary_factor") * head_dim_of(cfg))
        return {**values, "rotary_dim": rotated}


_EXPERT = (*linear("gate", "w1"), *linear("down", "w2"), *linear("up", "w3"))
_MIXED = (
    *below("experts.expert.{expert}", "experts.{expert}", _EXPERT),
    *linear("router.linear", "gate"),
    same("router.bias", "e_score_correction_bias"),
)
_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", NORMED_ATTENTION),
    *below("feed_forward", "block_sparse_moe", _MIXED),
)

MINIMAX_M2 = Family(
    architecture="MiniMaxM2ForCausalLM",
    template=lambda: minimax_m2("toy"),
    config=(
        *SIZES,
        Field("head_dim", ("**.attention.head_dim",), default=128),
        activation("hidden_act", "silu"),
        _RotaryDim(),
        Field("num_local_experts", ("**.feed_forward.num_experts",), default=256),
        Field("num_experts_per_tok", ("**.feed_forward.top_k",), default=8),
        tied_by(),
        NoPadding(),
        EveryLayer("attn_type_list", 1),
        *(
            MustBe(name, (value,), is_written=False)
            for name, value in (
                ("qk_norm_type", "per_layer"),
                ("scoring_func", "sigmoid"),
                ("shared_intermediate_size", 0),
                ("use_qk_norm", True),
                ("use_routing_bias", True),
            )
        ),
    ),
    weights=lambda cfg: _WEIGHTS,
    # Published weights have no layer for multi-token prediction, whatever these say.
    irrelevant=frozenset(
        {"mtp_transformer_layers", "num_mtp_modules", "router_aux_loss_coef", "use_mtp"}
    ),
    unread=frozenset({"mlp_intermediate_size"}),
)
