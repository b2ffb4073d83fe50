"""GLM-4, GLM-4-0414 and GLM-4.5."""

from typing import Any

import attrs

from axcore.config import evolve, replace_config, update_config
from axcore.interop import (
    ATTENTION,
    HEAD_DIM,
    PRE_NORMS,
    SIZES,
    ConfigEntry,
    Family,
    Field,
    Fields,
    MustBe,
    WeightMap,
    activation,
    below,
    common_value,
    linear,
    model_weights,
    same,
    without,
)
from axcore.layers import Attention, FeedForward, MoE, PreNorm, RoPE, Router, Sequence
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.models.shared_maps import (
    EXPERT_WEIGHTS,
    EXPERTS,
    FIRST_DENSE,
    Groups,
    NoPadding,
    PartialRopeFields,
    fused,
    interleaved_projection,
    tied_by,
)
from axl_attention.norms import QueryKeyNorm, with_query_key_norm, with_sandwich_norm
from axl_attention.positions import with_partial_rotary

_9B = {
    "vocab_size": 151_552,
    "dim": 4096,
    "num_layers": 40,
    "num_heads": 32,
    "num_kv_heads": 2,
    "hidden_dim": 13_696,
}
_GLM_SIZES: Sizes = {"9b": _9B, "toy": TOY}
_GLM4_SIZES: Sizes = {
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
    return _glm(**of_size("glm", _GLM_SIZES, size), epsilon=1.5625e-07)


def glm4(size: str) -> CausalLM.Config:
    """Return the config of a GLM-4-0414: `9b`, `32b` or `toy`.

    Source: configs that Z.ai published with the weights, 2025.
    """
    cfg = _glm(**of_size("glm4", _GLM4_SIZES, size), epsilon=1e-5)
    return replace_config(cfg, PreNorm, with_sandwich_norm)


def _glm(*, epsilon: float, has_bias: bool = True, **sizes: Any) -> Any:
    cfg = replace_config(transformer(**sizes), RoPE, with_partial_rotary)
    return update_config(
        cfg, {"**.attention.linear.has_bias": has_bias, "**.norm.epsilon": epsilon}
    )


_PUBLISHED = {"vocab_size": 151_552, "num_heads": 96, "num_kv_heads": 8, "head_dim": 128}
_TOY = {**TOY, "num_layers": 3, "head_dim": 32, "expert_dim": 32, "num_dense": 1, "scale": 2.5}

_GLM45_SIZES: Sizes = {
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
    sizes = dict(of_size("glm45", _GLM45_SIZES, size))
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


_SANDWICH = (
    same("attention_residual.before.weight", "input_layernorm.weight"),
    same("attention_residual.after.weight", "post_self_attn_layernorm.weight"),
    same("feed_forward_residual.before.weight", "post_attention_layernorm.weight"),
    same("feed_forward_residual.after.weight", "post_mlp_layernorm.weight"),
)


def _weights(cfg: Any) -> WeightMap:
    num_heads = common_value(cfg, "**.attention.num_heads")
    num_kv_heads = common_value(cfg, "**.attention.num_kv_heads") or num_heads
    head_dim = common_value(cfg, "**.attention.head_dim") or cfg.dim // num_heads
    rotated = int(head_dim * common_value(cfg, "**.position.fraction"))

    pairs = {"rotated": rotated, "rest": head_dim - rotated}
    attention = (
        *interleaved_projection("q", num_heads, **pairs),
        *interleaved_projection("k", num_kv_heads, **pairs),
        *linear("v", "v_proj"),
        *linear("out", "o_proj"),
    )
    width = common_value(cfg, "**.hidden_dim")
    return model_weights(
        *PRE_NORMS,
        *_SANDWICH,
        *below("attention", "self_attn", attention),
        fused(("feed_forward.gate", "feed_forward.up"), "mlp.gate_up_proj", (width, width)),
        *linear("feed_forward.down", "mlp.down_proj"),
    )


GLM = Family(
    architecture="GlmForCausalLM",
    template=lambda: glm("toy"),
    config=(
        *without(SIZES, "rms_norm_eps"),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1.5625e-07, to_axcore=float),
        HEAD_DIM,
        activation("hidden_act", "silu"),
        PartialRopeFields(default=0.5, is_always_partial=True),
        NoPadding(),
        Field("attention_bias", ("**.attention.linear.has_bias",), default=True),
        MustBe("tie_word_embeddings", (False,)),
    ),
    weights=_weights,
)
GLM4 = attrs.evolve(GLM, architecture="Glm4ForCausalLM", template=lambda: glm4("toy"))


_PATH = "**.attention.position"
_ROTARY = PartialRopeFields(default=0.5, path=f"{_PATH}.inner")


class _Positions(ConfigEntry):
    """Positions of a part of each head, behind norms where there is `use_qk_norm`."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with these positions."""
        cfg = _ROTARY.read(_with_position(cfg, lambda _: QueryKeyNorm.Config()), fields)
        has_norm = fields.take("use_qk_norm", False)
        return cfg if has_norm else _with_position(cfg, lambda old: old.inner)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields."""
        has_norm = isinstance(common_value(cfg, _PATH), QueryKeyNorm.Config)
        if not has_norm:
            cfg = _with_position(cfg, lambda old: QueryKeyNorm.Config(inner=old))
        return {**_ROTARY.write(cfg), "use_qk_norm": has_norm}


def _with_position(cfg: Any, new: Any) -> Any:
    return replace_config(cfg, lambda _: True, new, at=_PATH)


_WEIGHTS = model_weights(
    *PRE_NORMS,
    *below("attention", "self_attn", ATTENTION),
    same("attention.position.query_norm.weight", "self_attn.q_norm.weight"),
    same("attention.position.key_norm.weight", "self_attn.k_norm.weight"),
    *EXPERT_WEIGHTS,
)

GLM4_MOE = Family(
    architecture="Glm4MoeForCausalLM",
    template=lambda: glm45("toy"),
    layers=FIRST_DENSE,
    config=(
        *without(SIZES, "num_hidden_layers", "intermediate_size", "rms_norm_eps"),
        _Positions(),
        Field("rms_norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        Field("head_dim", ("**.attention.head_dim",)),
        Field("attention_bias", ("**.attention.linear.has_bias",), default=False),
        activation("hidden_act", "silu"),
        *EXPERTS,
        Groups("noaux_tc", "noaux_tc", rated_by=2),
        Field("norm_topk_prob", ("**.router.is_normalized",), default=True),
        MustBe("scoring_func", ("sigmoid",), is_written=False),
        tied_by(),
        NoPadding(),
    ),
    weights=lambda cfg: _WEIGHTS,
    irrelevant=frozenset({"num_mtp_layers", "num_nextn_predict_layers"}),
    mtp_counts=("num_nextn_predict_layers", "num_mtp_layers"),
)
